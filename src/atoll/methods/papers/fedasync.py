"""FedAsync: the server goes a step toward every client's model as it arrives, a shorter one if it is stale.

Xie et al. 2019, "Asynchronous Federated Optimization".
"""

from collections.abc import Sequence
from typing import Literal

from atoll.data.population import Population
from atoll.engine.cohorts import only_model
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.schedules.events import Clock, Mix
from atoll.schedules.overlapping import PendingWork, buffered
from atoll.support.errors import InputError
from atoll.support.limits import Count, NotNegative, Positive, PositiveFloat, Share

Staleness = Literal["constant", "polynomial", "hinge"]


@checked
def fedasync(
    population: Population,
    rule: LocalRule,
    clock: Clock,
    rounds: int,
    concurrency: Positive = 10,
    mixing: Share = 0.6,
    staleness: Staleness = "polynomial",
    exponent: NotNegative = 0.5,
    hinge_after: Count = 4,
    hinge_slope: PositiveFloat = 10.0,
    seed: int = 0,
) -> Method:
    """FedAsync: ``x <- (1 - mixing * s(tau)) * x + mixing * s(tau) * x_k`` whenever a client k is done.

    Xie et al. 2019, Algorithm 1; tau is how often x has changed since k was sent it, and s one of

    - constant: 1;
    - polynomial: ``(tau + 1) ** -exponent``;
    - hinge: 1 up to ``tau = hinge_after``, from there on ``1 / (hinge_slope * (tau - hinge_after) + 1)``.

    The paper's clients also have a proximal term, `rule.proximal`.

    Args:
        population: the clients.
        rule: what a client does.
        clock: how long each client takes.
        rounds: how often the server's model changes.
        concurrency: clients at work at any time.
        mixing: the weight of a model that is not stale, alpha.
        staleness: how weights fall with staleness.
        exponent: of polynomial staleness, a.
        hinge_after: the staleness from which a hinge falls, b.
        hinge_slope: how steeply it does, a.
        seed: what clients are drawn from.

    Raises:
        InputError: a setting out of range, or more clients at work than there are.
    """
    _check(mixing, staleness, exponent, hinge_after, hinge_slope)

    def weigh(tau: int) -> float:
        if staleness == "polynomial":
            return float((tau + 1) ** -exponent)
        return 1.0 if staleness == "constant" or tau <= hinge_after else 1 / (hinge_slope * (tau - hinge_after) + 1)

    def mix(jobs: Sequence[PendingWork], index: int) -> Mix:
        (job,) = jobs
        weight = mixing * weigh(index - job.version)
        return Mix(1 - weight, ((job.place, weight),))

    return Method(buffered(population.sizes, clock, rounds, concurrency, 1, mix, seed), rule, combine=only_model)


def _check(mixing: float, staleness: str, exponent: float, after: int, slope: float) -> None:
    if not 0 < mixing <= 1:
        raise InputError(f"method.mixing = {mixing}: must be greater than 0 and at most 1")
    if staleness not in ("constant", "polynomial", "hinge"):
        raise InputError(f"method.staleness = {staleness!r}: must be 'constant', 'polynomial' or 'hinge'")
    for name, value, least in (("exponent", exponent, 0), ("hinge_after", after, 0)):
        if not value >= least:
            raise InputError(f"method.{name} = {value}: must be at least {least}")
    if not slope > 0:
        raise InputError(f"method.hinge_slope = {slope}: must be greater than 0")
