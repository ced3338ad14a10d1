"""Epsilon of composed releases, computed by dp-accounting alone."""

import math
from bisect import bisect_right
from functools import cache
from typing import Any

from atoll.privacy.mechanism import Cost, response_epsilon
from atoll.support.extras import load_extra

STEPS = ((1.5, 1e-4), (4.0, 3e-4), (15.0, 1e-3), (60.0, 2e-3), (math.inf, 1e-2))
"""The step to which privacy losses are rounded up, by the largest epsilon for it. Epsilon is then too large by less
than 1e-6, or by less than 1e-4 above 60."""
FEW = 20
"""Up to this number of choices, losses are rounded as finely as for Gaussians alone."""
LARGEST = 700.0
"""Above it epsilon is a bound in closed form: e^epsilon would overflow, and next to no noise would need any memory."""


def require_accounting() -> None:
    """Reject privacy without dp-accounting."""
    load_extra("dp_accounting", "privacy", "privacy.trust:", "dp-accounting")


@cache
def epsilon_of(cost: Cost, releases: int, delta: float) -> float:
    """Return the epsilon that a client has spent after a number of releases; infinity without noise.

    Privacy loss distributions (PLD) are composed, which is exact except for rounding up, or above `LARGEST` bounded. No
    amplification by sampling is claimed, since the seed determines the cohorts.
    """
    return epsilon_of_all(((cost, releases),), delta)


@cache
def epsilon_of_all(spent: tuple[tuple[Cost, int], ...], delta: float) -> float:
    """Return the epsilon of releases of several costs, with the number of each."""
    spent = tuple((cost, releases) for cost, releases in spent if releases)
    if not spent:
        return 0.0
    if not all(cost.is_private for cost, _ in spent):
        return math.inf
    if (bound := _bound(spent, delta)) > LARGEST:
        return bound
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    replaced = any(cost.adjacency == "replace" or cost.response is not None for cost, _ in spent)
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.REPLACE_SPECIAL
    accountant = PLDAccountant(relation, value_discretization_interval=_step(spent, delta))
    for cost, releases in spent:
        accountant.compose(event_of(cost, releases, replaced))
    return float(accountant.get_epsilon(delta))


def event_of(cost: Cost, releases: int, replaced: bool) -> Any:
    """Return releases as an event of dp-accounting; `replaced` says whether its relation is replace-one.

    Any two choices are compared, which dp-accounting supports only with the replace-one relation. This doubles the
    sensitivity of Gaussians, so zero-out ones get twice the noise multiplier to compensate.
    """
    import dp_accounting as dp

    factor = 2 if cost.adjacency == "zero-out" and replaced else 1
    gaussians = [dp.GaussianDpEvent(factor * multiplier) for multiplier in cost.gaussians]
    # One by one: dp-accounting 0.6 counts a self-composed response only once.
    responses = [dp.RandomizedResponseDpEvent(*cost.response)] * releases if cost.response is not None else []
    return dp.ComposedDpEvent([*(dp.SelfComposedDpEvent(event, releases) for event in gaussians), *responses])


def most_releases(cost: Cost, delta: float, epsilon: float, most: int) -> int:
    """Return how many releases, at most `most`, a client can take part in without exceeding epsilon."""
    return bisect_right(range(1, most + 1), epsilon, key=lambda releases: epsilon_of(cost, releases, delta))


def _bound(spent: tuple[tuple[Cost, int], ...], delta: float) -> float:
    """Return an upper bound: the Gaussians' of zero-concentrated DP (Bun and Steinke 2016), and all responses'."""
    rho = sum(releases * _rough(cost, 0) for cost, releases in spent)
    responses = sum(releases * response_epsilon(*cost.response) for cost, releases in spent if cost.response)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta)) + responses


def _step(spent: tuple[tuple[Cost, int], ...], delta: float) -> float:
    """Return the step to which losses are rounded: the finest that takes at most about a second."""
    rho = sum(releases * _rough(cost, releases) for cost, releases in spent)  # of zero-concentrated DP
    rough = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    return next(step for most, step in STEPS if rough < most)


def _rough(cost: Cost, responses: int) -> float:
    """Return the approximate rho of a release; a few responses are fast at any step, and do not count."""
    factor = 2 if cost.adjacency == "replace" else 1
    rho = sum((factor / multiplier) * (factor / multiplier) for multiplier in cost.gaussians) / 2
    return rho if cost.response is None or responses <= FEW else rho + response_epsilon(*cost.response) ** 2 / 2
