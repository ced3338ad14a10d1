"""Whether clients of a trainer can train as one stack, tried out on two clients, and the memory that it takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from atoll.executors.stacked.tensors import Stack, forward, forward_vmap, stack_tensors, stacked_names
from atoll.local.rule import LocalRule, made_by
from atoll.local.trainer import Trainer
from atoll.local.weights import read_model
from atoll.support.errors import line_of
from atoll.support.seeds import layers_drawing_from

_SAMPLES = 8  # samples of the pool that the module is tried on


@dataclass(frozen=True)
class Fit:
    """What the trial on two clients has shown.

    Attributes:
        reason: why stacked clients would not train as they do apart; an empty text if they do.
        independent: whether a sample's output depends on that sample alone, so that batches may be padded.
        model_bytes: the module's parameters.
        input_bytes: one sample's input.
        saved_bytes: what its forward pass keeps for the backward pass.
        moments: tensors of a parameter's shape that the optimiser keeps for each parameter.
        shared: the optimiser's slots that hold one number for all clients, such as the count of steps.
        may_keep: whether the optimiser is not PyTorch's, and may keep a gradient for its next step as it is.
    """

    reason: str
    independent: bool = True
    model_bytes: int = 0
    input_bytes: int = 0
    saved_bytes: int = 0
    moments: int = 0
    shared: frozenset[str] = frozenset()
    may_keep: bool = False


def slot_of(key: str) -> str:
    """Return the slot of a moment's key ``parameter@slot``."""
    return key.partition("@")[2]


def try_stack(trainer: Trainer) -> Fit:
    """Try the trainer's optimiser and module on two stacked clients; the module is left as it was."""
    if trainer.why_one_by_one:
        return Fit(trainer.why_one_by_one)
    with layers_drawing_from(0, "stacked"):
        reason, moments, shared = _try_optimizer(trainer.rule, trainer.module)
        if reason:
            return Fit(reason)
        module, inputs = _trial(trainer)
        if reason := _try_layers(module, inputs):
            return Fit(reason)
        independent = _close(module(inputs[:2]), module(inputs)[:2])
        if not _agrees(module, inputs, independent):
            return Fit("the model computes something else when clients are stacked")
        numbers = sum(parameter.nbytes for parameter in module.parameters())
        may_keep = not type(made_by(trainer.rule)).__module__.startswith("torch.")
        saved = _saved_bytes(module, inputs)
        return Fit("", independent, numbers, inputs[0].nbytes, saved, moments, shared, may_keep)


@torch.no_grad()
def mixes_samples(trainer: Trainer) -> bool:
    """Return whether a sample's output depends on the rest of its batch or on random numbers, or buffers change."""
    module, inputs = _trial(trainer)
    found = []
    for seed, batch in enumerate((inputs, torch.cat([inputs[:2], inputs[:1].expand_as(inputs[2:])]))):
        with layers_drawing_from(seed, "stacked"):
            found.append(module(batch)[:2])
    buffers = zip(module.buffers(), trainer.module.buffers(), strict=True)
    return not (_close(*found) and all(own.equal(before) for own, before in buffers))


def _trial(trainer: Trainer) -> tuple[nn.Module, Tensor]:
    """Return a copy of the module, and a few samples' inputs."""
    rows = np.linspace(0, len(trainer.batches) - 1, _SAMPLES).astype(np.int32)
    return deepcopy(trainer.module).train(), trainer.batches.gather(rows)[0]


def _try_optimizer(rule: LocalRule, module: nn.Module) -> tuple[str, int, frozenset[str]]:
    """Return why the optimiser does not treat every number on its own, its moments and its shared slots.

    It takes three steps on two stacked clients, and on each apart.
    """
    device = next(module.parameters()).device
    draws = torch.Generator(device).manual_seed(0)

    def draw(shape: torch.Size) -> Tensor:
        return torch.randn(2, *shape, generator=draws, device=device, dtype=torch.float64)

    stacked = [nn.Parameter(draw(parameter.shape)) for parameter in module.parameters()]
    apart = [[nn.Parameter(parameter[k].detach().clone()) for parameter in stacked] for k in range(2)]
    optimizers = [rule.optimizer(parameters, 0.1) for parameters in apart]
    name = type(optimizers[0]).__name__
    try:
        optimizers.append(rule.optimizer(stacked, 0.1))
        for scale in (1.0, 1e3, 1e-3):  # so that a limit on the gradient's norm shows
            for parameter, *own in zip(stacked, *apart, strict=True):
                parameter.grad = draw(own[0].shape) * scale
                for k in range(2):
                    own[k].grad = parameter.grad[k].clone()
            for optimizer in optimizers:
                optimizer.step()
    except Exception as error:  # whatever a user's optimiser may raise
        return f"the optimizer {name} cannot drive stacked models ({line_of(error)})", 0, frozenset()
    if not all(
        torch.allclose(parameter[k], own[k], rtol=1e-9, atol=1e-12)
        for parameter, *own in zip(stacked, *apart, strict=True)
        for k in range(2)
    ):
        return f"the optimizer {name} does not step every number on its own: clients would share steps", 0, frozenset()
    slots = [
        (slot, tensor.shape == parameter.shape)
        for parameter in stacked
        for slot, tensor in optimizers[-1].state[parameter].items()
        if isinstance(tensor, Tensor)
    ]
    return "", len({slot for slot, own in slots if own}), frozenset(slot for slot, own in slots if not own)


def _try_layers(module: nn.Module, inputs: Tensor) -> str:
    """Return the layer that cannot be stacked, or that changes its buffers in the forward pass."""
    for own in module.modules():
        places = [name for name, other in module.named_modules(remove_duplicate=False) if other is own]
        if len(places) > 1 and any(True for _ in own.parameters()):  # functional_call does not restore such a layer
            return f"{_name(module, places[0])} stands in a second place, {places[1]!r}"
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    called: list[str] = []
    try:
        with _noting_layers(module, called):
            module(inputs)
            changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, before[name])]
            if changed:
                layer, _, buffer = changed[0].rpartition(".")
                return f"{_name(module, layer)} changes its buffer {buffer!r} in every step"
            called.clear()
            forward_vmap(module, _stack_of_two(module), torch.stack([inputs, inputs]))
    except Exception as error:  # whatever a user's model may raise, or TorchScript's, which takes no hooks
        fault = "draws random numbers" if "randomness" in str(error) else f"cannot be stacked ({line_of(error)})"
        return f"{_name(module, called[-1] if called else '')} {fault}"
    return ""


def _name(module: nn.Module, layer: str) -> str:
    kind = type(module.get_submodule(layer) if layer else module).__name__
    return f"the model's layer {layer!r} ({kind})" if layer else f"the model ({kind})"


@contextmanager
def _noting_layers(module: nn.Module, called: list[str]) -> Iterator[None]:
    """Note the names of the layers that are being called, the innermost last; it stays there when a call fails."""
    hooks = []

    def leave(_layer: nn.Module, _inputs: object, _outputs: object) -> None:
        called.pop()

    for name, layer in module.named_modules():
        hooks.append(layer.register_forward_pre_hook(lambda _layer, _inputs, name=name: called.append(name)))
        hooks.append(layer.register_forward_hook(leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _stack_of_two(module: nn.Module) -> Stack:
    """Return a stack of the module's own model and one with smaller parameters."""
    model = read_model(module)
    smaller = model | {name: model[name] * 0.9 for name, _ in module.named_parameters()}
    return stack_tensors([model, smaller], stacked_names(module), next(module.parameters()).device)


@torch.no_grad()
def _agrees(module: nn.Module, inputs: Tensor, independent: bool) -> bool:
    stack = _stack_of_two(module)
    stacked = forward(module, stack, torch.stack([inputs, inputs.flip(0)]), independent)
    return all(
        _close(stacked[k], torch.func.functional_call(module, {n: own[k] for n, own in stack.items()}, (own_inputs,)))
        for k, own_inputs in enumerate((inputs, inputs.flip(0)))
    )


def _close(one: Tensor, other: Tensor) -> bool:
    """Return whether two outputs are the same to rounding, on a GPU that of TF32."""
    scale = float(other.detach().nan_to_num(posinf=0, neginf=0).abs().max())  # samples may be bad: the run will say so
    return torch.allclose(one, other, rtol=1e-2, atol=1e-2 * scale, equal_nan=True)


def _saved_bytes(module: nn.Module, inputs: Tensor) -> int:
    """Return the bytes a sample that the forward pass keeps for the backward pass."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        module(inputs).sum()
    return sum(kept.values()) // len(inputs)
