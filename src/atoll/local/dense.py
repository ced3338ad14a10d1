"""Dense networks trained by plain SGD, with each step written by hand and done in place.

Autograd would write every gradient to memory and read it again for the step, with as much overhead as a small layer's
work. Here each gradient is added to the weights by the product that computes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from atoll.local.batches import binary_cross_entropy, cross_entropy, half_squared
from atoll.local.layers import is_watched

MakesLosses = Callable[[Tensor, Tensor], Tensor]

_through_relu = torch.ops.aten.threshold_backward.default  # (gradient after it, its output, 0)


@dataclass(frozen=True, eq=False)
class Dense:
    """A network of dense layers with ReLU or nothing between them, which shares a module's parameters.

    Attributes:
        layers: from the inputs to the outputs.
        relu: whether ReLU stands between them.
    """

    layers: tuple[nn.Linear, ...]
    losses: MakesLosses
    relu: bool = True

    @classmethod
    def of(cls, module: nn.Module, losses: MakesLosses) -> Self | None:
        """Return the network if the module is `nn.Flatten`, then `nn.Linear` with or without `nn.ReLU`, else None."""
        if type(module) is not nn.Sequential or losses not in _SLOPES:
            return None
        layers = tuple(layer for layer in module if type(layer) is nn.Linear)
        kinds = [type(layer) for layer in module]
        between: list[type[nn.Module]] = [nn.ReLU] if nn.ReLU in kinds else []
        if not layers or kinds != [nn.Flatten, nn.Linear] + [*between, nn.Linear] * (len(layers) - 1):
            return None
        flatten = module[0]
        whole = isinstance(flatten, nn.Flatten) and (flatten.start_dim, flatten.end_dim) == (1, -1)
        trained = all(parameter.requires_grad for parameter in module.parameters())
        apart = len({id(layer.weight) for layer in layers}) == len(layers)
        return cls(layers, losses, bool(between)) if whole and trained and apart and not is_watched(module) else None

    @torch.no_grad()
    def step(self, inputs: Tensor, targets: Tensor, lr: float, weights: Tensor | None = None) -> Tensor:
        """Take an SGD step on the samples' weighted loss, in place; return the outputs before it.

        `inputs` are [samples, ...], `targets` [samples] or [samples, outputs], and `weights` [samples]; None for the
        mean.
        """
        passed = [inputs.flatten(1)]
        for layer in self.layers[:-1]:
            hidden = nn.functional.linear(passed[-1], layer.weight, layer.bias)
            passed.append(hidden.relu_() if self.relu else hidden)
        outputs = nn.functional.linear(passed[-1], self.layers[-1].weight, self.layers[-1].bias)
        slopes = _SLOPES[self.losses](outputs, targets)
        if weights is not None:
            slopes *= weights[:, None]
        scale = -lr if weights is not None else -lr / len(inputs)
        ones = slopes.new_ones(len(inputs))
        for layer, entering in zip(reversed(self.layers), reversed(passed), strict=True):
            # Backpropagate through the old weights, before they change.
            before = None if entering is passed[0] else slopes @ layer.weight
            if before is not None and self.relu:
                before = _through_relu(before, entering, 0)
            layer.weight.addmm_(slopes.T, entering, alpha=scale)
            if layer.bias is not None:
                layer.bias.addmv_(slopes.T, ones, alpha=scale)
            if before is not None:
                slopes = before
        return outputs


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of each sample's loss with respect to its outputs."""
    slopes = outputs.softmax(dim=1)
    return slopes.scatter_add_(1, targets[:, None], slopes.new_full((len(slopes), 1), -1.0))


def _half_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.reshape(outputs.shape)).to(outputs)  # targets may be of another precision


def _binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.sigmoid() - targets.to(outputs)) / outputs.shape[1]


_SLOPES: dict[MakesLosses, Callable[[Tensor, Tensor], Tensor]] = {
    cross_entropy: _cross_entropy,
    half_squared: _half_squared,
    binary_cross_entropy: _binary_cross_entropy,
}
