"""FedUC's clustering: the greedy pass of Algorithm 2, and what Atoll adds to it."""

from typing import Literal

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.clustering.feduc.greedy import Pick, choose, feduc_labels, pick_at_random
from atoll.clustering.feduc.opening import Opening, check_opening, fill_empty, open_first, open_nearest
from atoll.clustering.feduc.passes import place_again
from atoll.clustering.feduc.problem import Problem
from atoll.clustering.feduc.progress import MIXING, feduc_for_progress
from atoll.clustering.feduc.refine import refine as refine_labels
from atoll.clustering.feduc.time_budget import feduc_for_time
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.limits import Count, NotNegative, PositiveFloat


def feduc(
    problem: Problem,
    overshoot: bool = False,
    refine: bool = False,
    objective: Literal["bound", "time", "progress"] = "bound",
    seconds: PositiveFloat | None = None,
    mixing: NotNegative = MIXING,
    opening: Opening = "none",
    start: Literal["greedy", "random"] = "greedy",
    passes: Count = 0,
    rng: np.random.Generator | None = None,
) -> Clustering:
    """Give each client, by decreasing size, to the aggregator with the least bound within the time limit (Algorithm 2).

    With an opening every aggregator gets a client and keeps one, as the proof of Theorem 1 has it.

    Args:
        problem: pattern, network, and the bound's constants.
        overshoot: put a client that fits nowhere where it overshoots its limit least, instead of refusing.
        refine: improve the greedy clustering by moves and swaps; the bound never gets worse.
        objective: `bound` is the bound after `problem.steps`; `time` the bound reached within `seconds` of virtual
            time, with the time limit chosen too (never above that of the problem); `progress` the predicted time to a
            target, as merges are frequent and bring unlike data together.
        seconds: for `objective` = 'time'.
        mixing: for `objective` = 'progress', by how much (in logarithms) more merges it takes if those that a merge
            brings together are as unlike all data as clients alone are.
        opening: who opens the aggregators, one client each: `first` the first of the queue, `nearest` those with
            the shortest uploads in all, `refine` clients that leave large clusters after the greedy pass, before
            `refine`; `none`: Algorithm 2 as printed, which can leave some empty.
        start: where clients go before `passes` and `refine`: by Algorithm 2, or at random within the limits.
        passes: times that every client is placed again with the others where they are, or until nothing changes.
        rng: for `start` = 'random'.

    Raises:
        InputError: a client that fits no aggregator, or settings that do not go together.
    """
    aggregators = problem.network.aggregators
    if objective == "time":
        if seconds is None:
            raise InputError("clustering.seconds is not set, but clustering.objective = 'time' needs it")
        _refuse("clustering.objective = 'time'", overshoot, opening=opening, start=start, passes=passes)
        labels, _ = feduc_for_time(problem, seconds, refine=refine)
        return Clustering(labels, aggregators)
    if objective == "progress":
        _refuse("clustering.objective = 'progress'", overshoot, opening=opening, start=start, passes=passes)
        return Clustering(feduc_for_progress(problem, mixing), aggregators)
    if opening != "none":
        _refuse(f"clustering.opening = {opening!r}", overshoot)
    check_opening(problem, opening)
    if start == "random" and rng is None:
        raise InputError("clustering.start = 'random': needs rng")
    labels = _placed(problem, overshoot, opening, choose if start == "greedy" or rng is None else pick_at_random(rng))
    labels = place_again(problem, labels, passes, may_empty=opening == "none")
    if refine or opening == "refine":
        labels = refine_labels(problem, labels, may_empty=opening == "none")
    return Clustering(labels, aggregators)


def _placed(problem: Problem, overshoot: bool, opening: Opening, pick: Pick) -> Ids:
    """Return every client's aggregator after the opening and the pass over all clients."""
    if opening == "first":
        return feduc_labels(problem, opened=open_first(problem, pick), pick=pick)
    if opening == "nearest":
        return feduc_labels(problem, opened=open_nearest(problem), pick=pick)
    labels = feduc_labels(problem, overshoot, pick=pick)
    return labels if opening == "none" else fill_empty(problem, labels)


def _refuse(other: str, overshoot: bool, **given: str | int) -> None:
    """Refuse what does not go with another setting, unless it has its default."""
    defaults = {"opening": "none", "start": "greedy", "passes": 0}
    named = {"overshoot = true": overshoot} | {
        f"{key} = {value!r}": value != defaults[key] for key, value in given.items()
    }
    for setting, is_set in named.items():
        if is_set:
            raise InputError(f"clustering.{setting}: does not go with {other}")
