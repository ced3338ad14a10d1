"""Local rules: how a client trains, and the optimisers by name.

A local rule is an optimiser (a function that makes a `torch.optim.Optimizer`), a number of steps or epochs, a batch
size and an optional proximal term; any optimiser works with any clustering, schedule and combine rule. A user's own
optimiser is named in the experiment file as ``optimizer = "module:function"``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # imported only when an optimiser is made, so that reading settings stays fast
    from torch import nn, optim

from atoll.local.augment import Augment
from atoll.local.from_torch import torch_optimizers
from atoll.support.errors import InputError
from atoll.support.limits import BelowOne, Count, NotNegative, Positive, PositiveFloat, Share
from atoll.support.requiring import plain, require_fields

MakeOptimizer = Callable[[Iterable["nn.Parameter"], float], "optim.Optimizer"]


@dataclass(frozen=True)
class LocalRule:
    """How a client trains: optimiser steps on batches drawn uniformly with replacement from its own data.

    Attributes:
        optimizer: makes the optimiser from the parameters and the learning rate.
        lr: learning rate eta.
        steps: local steps (FedCluster's E, FedUC's T''), the same number for every client.
        batch_size: samples per step, or "full" for all of the client's.
        proximal: FedProx's mu; adds ``(mu / 2) * ||w - W||^2`` to the local loss, where W is the model received.
        lr_decay: eta is multiplied by this after every round.
        resample_parts: with resampling, the number of disjoint parts of each client's data, 2 per round; else 0.
        carry_moments: whether the optimiser's state is sent with the model and averaged like it; else each client
            starts afresh in every event.
        epochs: instead of `steps`, train for this many epochs of the client's own samples; None: use `steps`. Batches
            are still drawn with replacement, so an epoch is a number of samples.
        augment: changes the inputs of each step's batch; None: they stay as they are.
        rates: the learning rate of each round in place of `lr`, still multiplied by `lr_decay`; empty: `lr`.

    Raises:
        InputError: if a number is out of range, or the optimiser is not a function.
    """

    optimizer: MakeOptimizer
    lr: PositiveFloat
    steps: Positive = 20
    batch_size: Positive | Literal["full"] = 30
    proximal: NotNegative = 0.0
    lr_decay: Share = 1.0
    resample_parts: Count = 0
    carry_moments: bool = False
    epochs: PositiveFloat | None = None
    augment: Augment | None = None
    rates: tuple[NotNegative, ...] = ()

    def steps_of(self, samples: int) -> int:
        """Return the local steps of a client with this many samples."""
        if self.epochs is None:
            return self.steps
        # Rounded first: 1.1 x 100 is 110.00000000000001.
        return max(1, ceil(round(self.epochs * (1 if self.batch_size == "full" else samples / self.batch_size), 9)))

    def __post_init__(self) -> None:
        """Refuse numbers out of range, with the same messages as settings."""
        if not callable(self.optimizer):
            raise InputError(f"local.optimizer = {self.optimizer!r}: must be a function, such as atoll.optimizers.sgd")
        rates = plain(self.rates)  # an array, too, from a script
        object.__setattr__(self, "rates", tuple(rates) if isinstance(rates, list) else rates)
        require_fields(self, "local.")

    def lr_at(self, round_: int) -> float:
        """Return the learning rate in a round.

        >>> LocalRule(sgd, 0.1, rates=(0.1, 0.05), lr_decay=0.5).lr_at(1)
        0.025
        """
        return (self.rates[round_] if self.rates else self.lr) * self.lr_decay**round_

    @property
    def is_constant(self) -> bool:
        """Whether the learning rate is the same in every round."""
        return not self.rates and self.lr_decay == 1


def made_by(rule: LocalRule) -> "optim.Optimizer":
    """Return an optimiser as the rule makes it, of a parameter of no use, to see what kind it is."""
    import torch

    return rule.optimizer([torch.nn.Parameter(torch.zeros(1, 1))], rule.lr)


def sgd(parameters: Iterable["nn.Parameter"], lr: float) -> "optim.Optimizer":
    """Plain SGD: ``w <- w - lr * g``."""
    from torch import optim

    return optim.SGD(parameters, lr=lr)


def momentum(parameters: Iterable["nn.Parameter"], lr: float, momentum: BelowOne = 0.5) -> "optim.Optimizer":
    """Heavy ball: ``u <- momentum * u + g; w <- w - lr * u``.

    Args:
        momentum: the momentum factor.
    """
    from torch import optim

    return optim.SGD(parameters, lr=lr, momentum=momentum)


def adam(parameters: Iterable["nn.Parameter"], lr: float) -> "optim.Optimizer":
    """Adam with betas (0.9, 0.999) and epsilon 1e-8."""
    from torch import optim

    return optim.Adam(parameters, lr=lr)


OPTIMIZERS: dict[str, Callable[..., "optim.Optimizer"]] = {"sgd": sgd, "momentum": momentum, **torch_optimizers()}
