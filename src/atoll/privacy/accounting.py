"""Epsilon of so many releases, by dp-accounting: it is computed there and nowhere else."""

import math
from functools import cache
from typing import Any

from atoll.privacy.mechanism import Cost
from atoll.support.extras import load_extra

STEPS = ((1.5, 1e-4), (4.0, 3e-4), (15.0, 1e-3), (60.0, 2e-3), (math.inf, 1e-2))
"""Up to which epsilon privacy losses are rounded in which steps, up: it comes out too large by less than 1e-6, and by
less than 1e-4 above 60."""


def require_accounting() -> None:
    """Refuse to go on without dp-accounting.

    Raises:
        InputError: says how to install it.
    """
    load_extra("dp_accounting", "privacy", "privacy.trust:", "dp-accounting")


@cache
def epsilon_of(cost: Cost, releases: int, delta: float) -> float:
    """Return the epsilon that a client has spent after so many releases; infinity where nothing is hidden.

    Privacy loss distributions are composed (PLD), which is exact but for rounding up: no amplification by sampling is
    claimed, since whoever knows the seed knows the cohorts.
    """
    if not releases:
        return 0.0
    if not cost.is_private:
        return math.inf
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(_relation(cost), value_discretization_interval=_step(cost, releases, delta))
    accountant.compose(event_of(cost, releases))
    return float(accountant.get_epsilon(delta))


def event_of(cost: Cost, releases: int) -> Any:
    """Return so many releases as an event of dp-accounting.

    A choice is between any two, which dp-accounting knows with replacement only. There it counts the sensitivity of
    Gaussians twice, so where that is too much they are given twice the noise.
    """
    import dp_accounting as dp

    factor = 2 if cost.adjacency == "zero-out" and cost.response is not None else 1
    gaussians = [dp.GaussianDpEvent(factor * multiplier) for multiplier in cost.gaussians]
    # One by one: dp-accounting 0.6 counts a response that is composed with itself, however often, once.
    responses = [dp.RandomizedResponseDpEvent(*cost.response)] * releases if cost.response is not None else []
    return dp.ComposedDpEvent([*(dp.SelfComposedDpEvent(event, releases) for event in gaussians), *responses])


def most_releases(cost: Cost, delta: float, epsilon: float, most: int) -> int:
    """Return how many releases, of at most so many, a client can take part in without exceeding epsilon."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if epsilon_of(cost, middle, delta) <= epsilon:
            least = middle
        else:
            most = middle - 1
    return least


def _relation(cost: Cost) -> Any:
    from dp_accounting import NeighboringRelation

    replaced = cost.adjacency == "replace" or cost.response is not None
    return NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.REPLACE_SPECIAL


def _step(cost: Cost, releases: int, delta: float) -> float:
    """Return the step in which losses are rounded: the finest that takes no more than about a second."""
    factor = 2 if cost.adjacency == "replace" else 1
    rho = releases / 2 * sum((factor / multiplier) ** 2 for multiplier in cost.gaussians)  # of zero-concentrated DP
    rough = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return next(step for most, step in STEPS if rough < most)
