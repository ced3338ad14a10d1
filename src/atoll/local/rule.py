"""Local rules: how a client trains, and the optimisers by name.

A local rule is an optimiser (one function that makes a `torch.optim.Optimizer`), a number of steps, a batch size,
and maybe a proximal term; any optimiser composes with any clustering, schedule and combine rule. A user's own
optimiser is named in the experiment file as ``optimizer = "module:function"``.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from atoll.support.limits import BelowOne


def _spare_the_compiler() -> None:
    """Keep PyTorch from importing its compiler with the first optimiser, which takes 3 s, only to tell it to stay away.

    The mark is what `torch._disable_dynamo` would leave there; a release that looks elsewhere takes its 3 s again.
    """
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        plain = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if plain is not None and "torch._dynamo" not in sys.modules:
            vars(plain).setdefault("__dynamo_disable", plain)


_spare_the_compiler()

MakeOptimizer = Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]


@dataclass(frozen=True)
class LocalRule:
    """How a client trains: `steps` optimiser steps on batches drawn uniformly with replacement from its own data.

    Attributes:
        optimizer: makes the optimiser from the parameters and the learning rate.
        lr: learning rate eta.
        steps: local steps (FedCluster's E, FedUC's T'').
        batch_size: samples a step, or "full" for all of the client's.
        proximal: FedProx's mu; the local loss gains ``(mu / 2) * ||w - W||^2``, W being the model it was sent.
        lr_decay: eta is multiplied by this after every round.
        resample_parts: with resampling, the number of disjoint parts of each client's data, 2 a round; else 0.
        carry_moments: whether the optimiser's state travels with the model, averaged like it; else every client starts
            afresh in every event.
    """

    optimizer: MakeOptimizer
    lr: float
    steps: int = 20
    batch_size: int | Literal["full"] = 30
    proximal: float = 0.0
    lr_decay: float = 1.0
    resample_parts: int = 0
    carry_moments: bool = False

    def lr_at(self, round_: int) -> float:
        """Return the learning rate in a round."""
        return self.lr * self.lr_decay**round_


def sgd(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Plain SGD: ``w <- w - lr * g``."""
    return torch.optim.SGD(parameters, lr=lr)


def momentum(parameters: Iterable[nn.Parameter], lr: float, momentum: BelowOne = 0.5) -> torch.optim.Optimizer:
    """Heavy ball: ``u <- momentum * u + g; w <- w - lr * u``.

    Args:
        momentum: the factor.
    """
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def adam(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam with betas (0.9, 0.999) and epsilon 1e-8."""
    return torch.optim.Adam(parameters, lr=lr)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": sgd, "momentum": momentum, "adam": adam}
