"""FedAsync: the server steps toward each client's model on arrival, by less the staler it is.

Xie et al. 2019, "Asynchronous Federated Optimization".
"""

from collections.abc import Sequence
from typing import Literal

from atoll.data.population import Population
from atoll.engine.cohorts import only_model
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.schedules.clock import Clock
from atoll.schedules.events import Mix
from atoll.schedules.overlapping import PendingWork, buffered
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
    """FedAsync: ``x <- (1 - mixing * s(tau)) * x + mixing * s(tau) * x_k`` whenever a client k finishes.

    Xie et al. 2019, Algorithm 1; the staleness tau counts changes of x since k received it, and s is one of

    - constant: 1;
    - polynomial: ``(tau + 1) ** -exponent``;
    - hinge: 1 up to ``tau = hinge_after``, then ``1 / (hinge_slope * (tau - hinge_after) + 1)``.

    The paper's clients also have a proximal term, `rule.proximal`.

    Args:
        clock: each client's training and upload times.
        rounds: number of server updates.
        concurrency: number of clients training at any time.
        mixing: weight of a fresh model, alpha.
        staleness: the staleness function, s.
        exponent: exponent of polynomial staleness, a.
        hinge_after: staleness above which the hinge decreases, b.
        hinge_slope: slope of the hinge, a.
        seed: seed for drawing clients.

    Raises:
        InputError: a setting is out of range, or concurrency exceeds the number of clients.
    """

    def weigh(tau: int) -> float:
        if staleness == "polynomial":
            return float((tau + 1) ** -exponent)
        return 1.0 if staleness == "constant" or tau <= hinge_after else 1 / (hinge_slope * (tau - hinge_after) + 1)

    def mix(jobs: Sequence[PendingWork], index: int) -> Mix:
        (job,) = jobs
        weight = mixing * weigh(index - job.version)
        return Mix(1 - weight, ((job.place, weight),))

    return Method(buffered(population.sizes, clock, rounds, concurrency, 1, mix, seed), rule, combine=only_model)
