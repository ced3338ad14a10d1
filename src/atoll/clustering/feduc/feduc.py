"""FedUC's clustering: the greedy pass of Algorithm 2, and what Atoll adds to it."""

from typing import Literal

from atoll.clustering.clustering import Clustering
from atoll.clustering.feduc.greedy import feduc_labels
from atoll.clustering.feduc.problem import Problem
from atoll.clustering.feduc.refine import refine as refine_labels
from atoll.clustering.feduc.time_budget import feduc_for_time
from atoll.support.errors import InputError
from atoll.support.limits import PositiveFloat


def feduc(
    problem: Problem,
    overshoot: bool = False,
    refine: bool = False,
    objective: Literal["bound", "time"] = "bound",
    seconds: PositiveFloat | None = None,
) -> Clustering:
    """Give each client, by decreasing size, to the aggregator with the least bound within the time limit (Algorithm 2).

    Args:
        problem: pattern, network, and the bound's constants.
        overshoot: put a client that fits nowhere where it overshoots its limit least, instead of refusing.
        refine: improve the greedy clustering by moves and swaps; the bound never gets worse.
        objective: `bound` is the bound after `problem.steps`; `time` the bound reached within `seconds` of virtual
            time, with the time limit chosen too (never above that of the problem).
        seconds: for `objective` = 'time'.

    Raises:
        InputError: a client that fits no aggregator, or settings that do not go together.
    """
    aggregators = problem.network.aggregators
    if objective == "time":
        if seconds is None:
            raise InputError("clustering.seconds is not set, but clustering.objective = 'time' needs it")
        if overshoot:
            raise InputError("clustering.overshoot = true: does not go with clustering.objective = 'time'")
        labels, _ = feduc_for_time(problem, seconds, refine=refine)
    else:
        labels = feduc_labels(problem, overshoot)
        labels = refine_labels(problem, labels) if refine else labels
    return Clustering(labels, aggregators)
