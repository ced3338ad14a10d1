"""Models as they are communicated: read from a module, loaded into one, compared, measured and checked."""

import math
from collections.abc import Container, Mapping
from contextlib import suppress
from warnings import warn

import torch
from torch import Tensor, nn

from atoll.local.models import Form, Model, Shape
from atoll.local.rule import LocalRule
from atoll.support.errors import InputError, SettingWarning, refusing
from atoll.support.requiring import require

LARGEST_NUMBER = 1e12  # allowed in a client's model: far beyond any useful one, and sums and products stay finite
LARGEST_LOSS = 1e15  # that a client may report: means stay finite, however many clients there are


def check_outputs(module: nn.Module, shape: Shape, outputs: int, name: str) -> None:
    """Refuse a module that does not map [n, *shape] to [n, outputs]."""
    sample = torch.zeros(2, *shape, dtype=next(module.parameters(), torch.empty(0)).dtype)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError(f"model.name = {name!r}: the model has no parameters to train")
    training = module.training
    try:
        with torch.no_grad(), refusing(f"model.name = {name!r}: cannot take inputs of shape {[2, *shape]}", Exception):
            returned = module.eval()(sample)
    finally:
        module.train(training)
    if not isinstance(returned, Tensor) or list(returned.shape) != [2, outputs]:
        got = list(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise InputError(
            f"model.name = {name!r}: for two inputs the model must return shape {[2, outputs]} "
            f"(the data set has {outputs} classes), it returned {got}"
        )


def warn_of_softmax(module: nn.Module, shape: Shape, name: str) -> None:
    """Warn of a module whose outputs are shares of classes: cross-entropy takes the softmax itself."""
    sample = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    training, are_shares = module.training, False
    with torch.no_grad(), suppress(Exception):  # a user's model need not take any numbers
        made = module.eval()(sample.to(next(module.parameters()).dtype))
        are_shares = made.shape[1] > 1 and bool((made >= 0).all() and (made.sum(1) - 1).abs().max() < 1e-3)
    module.train(training)
    if are_shares:
        told = "its outputs are shares that sum to 1, as after a softmax, which cross-entropy takes itself"
        warn(f"model.name = {name!r}: {told}; return what goes into the softmax", SettingWarning, 2)


def require_device(device: str) -> str:
    """Return the device if it can hold tensors."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].partition(" (")[0].partition("Expected one of")[0] or "no such device"
        raise InputError(f"run.device = {device!r}: is not available here ({reason}); use 'cpu'") from error
    return device


def require_devices(devices: str) -> list[str]:
    """Return the devices of a list such as "cuda:0,cuda:1", the first of which holds what all share."""
    return [require_device(each.strip()) for each in devices.split(",")]


def place(module: nn.Module, device: str = "cpu") -> nn.Module:
    """Move a module to the device in channels-last layout, in which most hardware computes convolutions faster.

    Models that leave it are contiguous, so that sums over them do not depend on the layout.
    """
    return module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def read_model(module: nn.Module, names: Container[str] | None = None) -> Model:
    """Return a copy of the module's parameters and buffers, or only of those in `names`."""
    require("module", module, nn.Module)
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict().items()
        if names is None or name in names
    }


def count_bytes(model: Model) -> int:
    """Return the bytes of a model's tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.values())


def bytes_of_form(form: Form) -> int:
    """Return the bytes of a model of this form."""
    return sum(shape.numel() * dtype.itemsize for shape, dtype in form.values())


def is_finite(model: Model, loss: float) -> bool:
    """Return whether the loss and all numbers of the model are finite."""
    numbers = [tensor for tensor in model.values() if tensor.is_floating_point()] or [torch.zeros(1)]
    # Finite sums imply finite numbers; checking sums is much faster and waits only once for a GPU.
    summed = bool(torch.stack([tensor.sum().double() for tensor in numbers]).isfinite().all())
    return math.isfinite(loss) and (summed or all(bool(tensor.isfinite().all()) for tensor in numbers))


def is_bounded(model: Model, loss: float, largest: float = LARGEST_NUMBER) -> bool:
    """Return whether no number exceeds `largest`, nor the loss `LARGEST_LOSS`, and no count of batches is below 0."""
    numbers = (tensor for tensor in model.values() if tensor.is_floating_point() and tensor.numel())
    counts = (tensor for name, tensor in model.items() if name.endswith("num_batches_tracked"))
    in_size = abs(loss) <= LARGEST_LOSS and all(float(tensor.abs().max()) <= largest for tensor in numbers)
    return in_size and all(bool(((tensor >= 0) & (tensor <= LARGEST_NUMBER)).all()) for tensor in counts)


def with_variances(model: Model) -> Model:
    """Return the model with no running variance below 0: one that is has no root, and so no server would take it."""
    return {name: own.clamp(min=0) if name.endswith("running_var") else own for name, own in model.items()}


def trained_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes, by name; see `travel.frozen` for the others."""
    return {name: each for name, each in module.named_parameters() if each.requires_grad}


def load_model(module: nn.Module, model: Model) -> None:
    """Copy a model into the module; tensors that are not communicated (`model.travels`) stay as they are.

    Raises:
        InputError: if the model has none of the module's tensors, or one has another shape.
    """
    require("module", module, nn.Module)
    own = module.state_dict()
    if not isinstance(model, Mapping) or not any(name in model for name in own):
        raise InputError("model: has none of the module's tensors; atoll.read_model(module) returns a model that has")
    for name, tensor in own.items():
        if name in model:
            try:
                tensor.copy_(model[name])
            except RuntimeError as error:
                if tensor.shape == model[name].shape:
                    raise
                told = f"{list(model[name].shape)}, the module's has {list(tensor.shape)}"
                raise InputError(f"model: tensor {name!r} has the shape {told}") from error


def load_moments(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], start: Model) -> None:
    """Give the optimiser the moments of these parameters that came with a model."""
    for key, tensor in start.items():
        name, _, slot = key.partition("@")
        if slot and name in parameters:
            own, copy = parameters[name], tensor.clone()
            optimizer.state[own][slot] = copy if copy.shape != own.shape else torch.empty_like(own).copy_(copy)


def read_moments(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> Model:
    """Return a copy of the optimiser's moments of these parameters, each named parameter@slot."""
    return {
        f"{name}@{slot}": tensor.clone(memory_format=torch.contiguous_format)
        for name, parameter in parameters.items()
        for slot, tensor in optimizer.state[parameter].items()
        if isinstance(tensor, Tensor)
    }


def first_moments(rule: LocalRule, module: nn.Module) -> Model:
    """Return the optimiser's state that travels with a model; takes a step on the module to see it."""
    if not rule.carry_moments:
        return {}
    own = trained_of(module)
    optimizer = rule.optimizer(own.values(), rule.lr)
    for parameter in own.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return read_moments(optimizer, own)
