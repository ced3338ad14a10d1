"""Dense networks trained by plain SGD: each step made by hand, in place.

Autograd would write every gradient to memory, read it again for the step, and spend as long on bookkeeping as a small
layer takes. Here a gradient is added to the weights in the product that makes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from atoll.batches import LOSSES, cross_entropy, half_squared

MakesLosses = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Dense:
    """A network of dense layers with ReLU between them, whose parameters are those of a module.

    Attributes:
        layers: from the inputs to the outputs.
        losses: what is trained: cross-entropy, or half the squared error.
    """

    layers: tuple[nn.Linear, ...]
    losses: MakesLosses

    @classmethod
    def of(cls, module: nn.Module, losses: MakesLosses) -> Self | None:
        """Return the network if the module is one: `nn.Flatten`, then `nn.Linear` with `nn.ReLU` between them."""
        if type(module) is not nn.Sequential or losses not in LOSSES.values():
            return None
        layers = tuple(layer for layer in module if type(layer) is nn.Linear)
        kinds = [type(layer) for layer in module]
        if not layers or kinds != [nn.Flatten, nn.Linear] + [nn.ReLU, nn.Linear] * (len(layers) - 1):
            return None
        flatten = module[0]
        whole = isinstance(flatten, nn.Flatten) and (flatten.start_dim, flatten.end_dim) == (1, -1)
        trained = all(parameter.requires_grad for parameter in module.parameters())
        apart = len(set(map(id, layers))) == len(layers)
        hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules())
        return cls(layers, losses) if whole and trained and apart and not hooked else None

    @torch.no_grad()
    def step(self, inputs: Tensor, targets: Tensor, weights: Tensor, lr: float) -> Tensor:
        """Take a step of SGD down the samples' weighted loss, in place; return each sample's loss before it.

        Args:
            inputs: [samples, ...].
            targets: [samples] or [samples, outputs].
            weights: each sample's weight in the loss, [samples]; 1 / samples for the mean.
            lr: learning rate.
        """
        passed = [inputs.flatten(1)]
        for layer in self.layers[:-1]:
            passed.append(nn.functional.linear(passed[-1], layer.weight, layer.bias).relu_())
        outputs = nn.functional.linear(passed[-1], self.layers[-1].weight, self.layers[-1].bias)
        losses, slopes = _GRADIENTS[self.losses](outputs, targets)
        slopes *= weights[:, None]
        for layer, entering in zip(reversed(self.layers), reversed(passed), strict=True):
            before = None if entering is passed[0] else (slopes @ layer.weight).mul_(entering > 0)
            layer.weight.addmm_(slopes.T, entering, alpha=-lr)
            if layer.bias is not None:
                layer.bias.sub_(slopes.sum(dim=0), alpha=lr)
            if before is not None:
                slopes = before
        return losses


def is_plain_sgd(optimizer: torch.optim.Optimizer, lr: float) -> bool:
    """Return whether the optimiser's step is ``w <- w - lr * g`` and no more."""
    if type(optimizer) is not torch.optim.SGD or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    others = ("momentum", "weight_decay", "dampening", "nesterov", "maximize")
    return group["lr"] == lr and not any(group[key] for key in others)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's loss and its gradient with respect to the outputs."""
    logs = outputs.log_softmax(dim=1)
    own = targets[:, None]
    losses = -logs.gather(1, own)[:, 0]
    slopes = logs.exp_()
    return losses, slopes.scatter_add_(1, own, slopes.new_full((len(slopes), 1), -1.0))


def _half_squared(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    slopes = outputs - targets.reshape(outputs.shape)
    return slopes.square().sum(dim=1) / 2, slopes.to(outputs)  # targets may be of another precision


_GRADIENTS: dict[MakesLosses, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    cross_entropy: _cross_entropy,
    half_squared: _half_squared,
}
