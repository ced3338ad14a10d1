"""A network whose products are computed in bfloat16, with weights, steps and all else in single precision.

Weights are rounded once per step, and activations stay rounded from product to product, instead of rounding both at
every product: this halves the memory traffic and saves conversions.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn

from atoll.local.layers import is_watched

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PASS = (nn.ReLU, nn.Flatten, nn.Identity, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
"""Layers whose outputs are inputs or zero: exact in any precision."""


class Rounded:
    """A sequence of layers whose products use copies of their weights in bfloat16.

    Steps update the float32 parameters, which receive the copies' gradients. Other layers, such as norms, compute in
    float32.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        copies: dict[nn.Module, nn.Module] = {}
        for layer in layers:
            if type(layer) in _PRODUCTS and layer not in copies:
                copies[layer] = deepcopy(layer).bfloat16()
        self.layers = [(layer, copies.get(layer)) for layer in layers]
        self.pairs = [
            pair for layer, copy in copies.items() for pair in zip(layer.parameters(), copy.parameters(), strict=True)
        ]
        for own, rounded in self.pairs:
            if rounded.requires_grad:
                rounded.register_post_accumulate_grad_hook(_handing_to(own))  # type: ignore[no-untyped-call]

    @classmethod
    def of(cls, module: nn.Module) -> Self | None:
        """Return the network if the module is a sequence with single-precision products and no hooks, else None."""
        layers = _flattened(module)
        products = [layer for layer in layers or () if type(layer) in _PRODUCTS]
        single = all(own.dtype == torch.float32 for layer in products for own in layer.parameters())
        return cls(layers) if layers and products and single and not is_watched(module) else None

    def __reduce__(self) -> tuple[type["Rounded"], tuple[list[nn.Module]]]:
        """Pickle the layers: hooks cannot be pickled."""
        return Rounded, ([layer for layer, _ in self.layers],)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs, in float32, with the current parameters."""
        with torch.no_grad():
            for own, rounded in self.pairs:
                rounded.copy_(own)
        passed = inputs
        for layer, copy in self.layers:
            if copy is not None:
                passed = copy(passed.bfloat16())
            else:
                passed = layer(passed if type(layer) in _PASS else passed.float())
        return passed.float()


def _flattened(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of nested sequences; None if the module is not a sequence."""
    if type(module) is not nn.Sequential:
        return None
    return [each for layer in module for each in (_flattened(layer) or [layer])]


def _handing_to(own: nn.Parameter) -> Callable[[Tensor], None]:
    """Return a hook that adds a copy's gradient to the parameter, which several layers may share."""

    def hand(rounded: Tensor) -> None:
        if rounded.grad is not None:
            own.grad = rounded.grad.float() if own.grad is None else own.grad + rounded.grad
            rounded.grad = None

    return hand
