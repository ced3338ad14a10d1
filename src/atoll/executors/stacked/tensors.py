"""Many models of one module as a stack: tensors of all models by name, [clients, ...]."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from atoll.local.models import Model
from atoll.local.precision import products_in
from atoll.support.arrays import Floats

Stack = dict[str, Tensor]

_EACH_NUMBER = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Identity)
_EACH_CHANNEL = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d)


def stack_tensors(models: Sequence[Model], names: Sequence[str], device: torch.device) -> Stack:
    """Return a stack of these tensors of the models, which may be one model many times; always a copy."""
    different = {id(model): model for model in models}
    places = {key: place for place, key in enumerate(different)}
    index = torch.tensor([places[id(model)] for model in models], device=device)
    own = different.values()
    return {name: torch.stack([model[name].to(device) for model in own]).index_select(0, index) for name in names}


def stacked_names(module: nn.Module) -> list[str]:
    """Return the names of the module's parameters, each once though layers may share it, and of its sent buffers."""
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    return [name for name, _ in module.named_parameters()] + [name for name in module.state_dict() if name in buffers]


def weigh(stack: Stack, shares: Floats) -> Model:
    """Return the sum over the stack's models, each times its share."""
    weights = torch.from_numpy(shares).to(next(iter(stack.values())).device)
    with products_in("float32"):
        return {name: torch.tensordot(weights.to(tensor.dtype), tensor, dims=1) for name, tensor in stack.items()}


def add(one: Model, other: Model) -> Model:
    """Return the sum of two models; an empty one is zero."""
    return {name: one[name] + tensor if one else tensor for name, tensor in other.items()}


def pick(stack: Stack, clients: int | slice) -> Stack:
    """Return the model of one of the clients, or the stack of some; nothing is copied."""
    return {name: tensor[clients] for name, tensor in stack.items()}


def finite_clients(stack: Stack) -> Tensor:
    """Return for each client whether all sums over its tensors are finite, [clients]; then all numbers are."""
    return torch.stack([each[:, None].flatten(1).sum(dim=1) for each in stack.values()]).isfinite().all(dim=0)


def forward(module: nn.Module, stack: Stack, inputs: Tensor, independent: bool) -> Tensor:
    """Return each model's outputs on its own inputs [clients, samples, ...].

    `independent` says that a sample's output depends on that sample alone. Then the layers of an `nn.Sequential` are
    taken one by one, because a dense layer is twice as fast as one batched product on the CPU as under vmap.
    """
    if type(module) is nn.Sequential and independent and len(stack) == len(module.state_dict()):
        return _forward_layers(module, stack, inputs)
    return forward_vmap(module, stack, inputs)  # also where layers share parameters, which the stack has only once


def forward_vmap(module: nn.Module, stack: Stack, inputs: Tensor) -> Tensor:
    """Return each model's outputs on its own inputs [clients, samples, ...], for any module."""

    def call(model: Model, own: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(module, model, (own,))
        return outputs

    outputs: Tensor = torch.vmap(call)(stack, inputs)
    return outputs


def _forward_layers(module: nn.Sequential, stack: Stack, inputs: Tensor) -> Tensor:
    values = inputs
    for name, layer in zip(module._modules, module, strict=True):  # named_children() gives a layer only once
        own = {key.removeprefix(f"{name}."): tensor for key, tensor in stack.items() if key.startswith(f"{name}.")}
        if type(layer) in _EACH_NUMBER:
            values = layer(values)
        elif type(layer) in _EACH_CHANNEL and values.ndim == 5:  # clients' channels side by side, as convolutions leave
            values = layer(values.transpose(0, 1).flatten(1, 2)).unflatten(1, (len(values), -1)).transpose(0, 1)
        elif not own:
            values = layer(values.flatten(0, 1)).unflatten(0, values.shape[:2])
        elif type(layer) is nn.Linear and values.ndim == 3 and "weight" in own:
            values = _multiply(values, own["weight"], own.get("bias"))
        else:
            values = forward_vmap(layer, own, values)
    return values


def _multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``inputs @ weight^T + bias``, in the order whose gradient has the weight's layout and is not copied."""
    if bias is None:
        return torch.bmm(weight, inputs.mT).mT
    return torch.baddbmm(bias.unsqueeze(2), weight, inputs.mT).mT
