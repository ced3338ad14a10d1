"""Learning rates by round: PyTorch's schedules, a list, or a function of one's own; all known before training."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from atoll.local.from_torch import torch_schedules
from atoll.support.errors import InputError, blaming
from atoll.support.limits import NotNegative

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


def constant(lr: float) -> float:
    """Return the same rate in every round."""
    return lr


def listed(round: int, rounds: int, rates: list[NotNegative]) -> float:
    """Return the rates of a list, one per round.

    Args:
        rates: the learning rate of each round, at least as many as rounds.
    """
    if len(rates) < rounds:
        raise InputError(f"local.rates: {len(rates)} given for {rounds} rounds besides warm-up; give one per round")
    return rates[round]


SCHEDULES: Mapping[str, Callable[..., Any]] = {"constant": constant, "list": listed, **torch_schedules()}


def fill(given: Mapping[str, Any], lr: float, rounds: int) -> dict[str, Any]:
    """Return a schedule's settings; of those left unset, with what follows from the run."""
    from_run = {"T_max": rounds, "total_steps": rounds, "base_lr": lr}
    return {**given, **{key: value for key, value in from_run.items() if given.get(key) is None}}


def scheduled_rates(make: "Callable[[Optimizer], LRScheduler]", lr: float, rounds: int) -> list[float]:
    """Return the learning rates that a scheduler of PyTorch gives when it takes a step after every round."""
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = make(optimizer)
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        raise InputError(f"local.schedule: must return an LRScheduler, it returned {type(scheduler).__name__!r}")
    rates = [float(optimizer.param_groups[0]["lr"])][:rounds]
    while len(rates) < rounds:
        optimizer.step()
        with blaming(f"local.schedule: gives no rate for round {len(rates)} of {rounds} besides warm-up", InputError):
            scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


def warmed_up(name: str, rates: list[Any], lr: float, warmup_rounds: int) -> tuple[float, ...]:
    """Return rates after others that rise evenly towards `lr`: ``lr * (r + 1) / (warmup_rounds + 1)`` in round r.

    >>> warmed_up("list", [1.0, 0.5], 1.0, 3)
    (0.25, 0.5, 0.75, 1.0, 0.5)
    """
    whole = [lr * (round_ + 1) / (warmup_rounds + 1) for round_ in range(warmup_rounds)]
    whole += [rate.item() if hasattr(rate, "item") else rate for rate in rates]  # of NumPy or PyTorch
    for round_, rate in enumerate(whole):
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not -1e-12 * lr <= rate < math.inf:
            wrong = f"the rate of round {round_} is {rate!r}"
            raise InputError(f"local.schedule = {name!r}: {wrong}; must be a finite number of at least 0")
    return tuple(max(float(rate), 0.0) for rate in whole)  # a schedule that ends at 0 may round to just below
