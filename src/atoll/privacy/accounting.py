"""Epsilon of so many releases, by dp-accounting: it is computed there and nowhere else."""

import math
from functools import cache
from typing import Any

from atoll.privacy.mechanism import Cost, response_epsilon
from atoll.support.extras import load_extra

STEPS = ((1.5, 1e-4), (4.0, 3e-4), (15.0, 1e-3), (60.0, 2e-3), (math.inf, 1e-2))
"""Up to which epsilon privacy losses are rounded in which steps, up: it comes out too large by less than 1e-6, and by
less than 1e-4 above 60."""
FEW = 20
"""Up to which number of choices their losses are rounded as finely as Gaussians alone are."""


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
    return epsilon_of_all(((cost, releases),), delta)


@cache
def epsilon_of_all(spent: tuple[tuple[Cost, int], ...], delta: float) -> float:
    """Return the epsilon of releases of several costs, so many of each."""
    spent = tuple((cost, releases) for cost, releases in spent if releases)
    if not spent:
        return 0.0
    if not all(cost.is_private for cost, _ in spent):
        return math.inf
    from dp_accounting.pld import PLDAccountant

    replaced = any(map(_is_replaced, (cost for cost, _ in spent)))
    accountant = PLDAccountant(_relation(replaced), value_discretization_interval=_step(spent, delta))
    for cost, releases in spent:
        accountant.compose(event_of(cost, releases, replaced))
    return float(accountant.get_epsilon(delta))


def event_of(cost: Cost, releases: int, replaced: bool | None = None) -> Any:
    """Return so many releases as an event of dp-accounting.

    A choice is between any two, which dp-accounting knows with replacement only. There it counts the sensitivity of
    Gaussians twice, so where that is too much they are given twice the noise.

    Args:
        cost: of one.
        releases: how many.
        replaced: whether what they are composed with is counted with replacement; None: they are alone.
    """
    import dp_accounting as dp

    replaced = _is_replaced(cost) if replaced is None else replaced
    factor = 2 if cost.adjacency == "zero-out" and replaced else 1
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


def _is_replaced(cost: Cost) -> bool:
    return cost.adjacency == "replace" or cost.response is not None


def _relation(replaced: bool) -> Any:
    from dp_accounting import NeighboringRelation

    return NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.REPLACE_SPECIAL


def _step(spent: tuple[tuple[Cost, int], ...], delta: float) -> float:
    """Return the step in which losses are rounded: the finest that takes no more than about a second."""
    rho = sum(releases * _rough(cost, releases) for cost, releases in spent)  # of zero-concentrated DP
    rough = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return next(step for most, step in STEPS if rough < most)


def _rough(cost: Cost, releases: int) -> float:
    """Return rho of one of so many releases, roughly; a few responses are quick in any step."""
    factor = 2 if cost.adjacency == "replace" else 1
    rho = sum((factor / multiplier) ** 2 for multiplier in cost.gaussians) / 2
    return rho if cost.response is None or releases <= FEW else rho + response_epsilon(*cost.response) ** 2 / 2
