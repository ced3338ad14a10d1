"""FedUC's clustering: the greedy pass of Algorithm 2, and Atoll's extensions."""

from typing import Literal
from warnings import warn

import numpy as np

from atoll.clustering.clustering import Clustering, checked_rule
from atoll.clustering.feduc.greedy import Pick, choose, feduc_labels, pick_at_random, place_again
from atoll.clustering.feduc.opening import Opening, check_opening, fill_empty, open_first, open_nearest
from atoll.clustering.feduc.problem import Problem
from atoll.clustering.feduc.progress import MIXING, feduc_for_progress
from atoll.clustering.feduc.refine import refine as refine_labels
from atoll.clustering.feduc.time_budget import feduc_for_time
from atoll.support.arrays import Ids
from atoll.support.errors import InputError, SettingWarning
from atoll.support.limits import Count, NotNegative, PositiveFloat
from atoll.support.wording import show


@checked_rule
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
    """Assign each client, by decreasing size, to the aggregator with the least bound within its limit (Algorithm 2).

    With an opening every aggregator gets a client and keeps one, as the proof of Theorem 1 assumes.

    Args:
        problem: pattern, network, and the bound's constants.
        overshoot: place a client that fits nowhere where it exceeds the limit least, instead of refusing.
        refine: improve the greedy clustering by moves and swaps; the bound never gets worse.
        objective: `bound` is the bound after the local steps; `time` the bound reached within `seconds` of virtual
            time, with the time limit chosen too (never above the problem's); `progress` the predicted time to a
            target, which frequent merges of unlike data shorten.
        seconds: for `objective` = 'time'.
        mixing: for `objective` = 'progress', by how much, as a logarithm, the merges needed increase if the data that a
            merge combines differs from all data as much as single clients' data does.
        opening: which clients open the aggregators, one each: `first` the first of the queue, `nearest` those with
            the least total upload time, `refine` clients that leave large clusters after the greedy pass, before
            `refine`; `none`: Algorithm 2 as printed, which can leave some empty.
        start: where clients are before `passes` and `refine`: by Algorithm 2, or at random within the limits.
        passes: how many times every client is placed again with all others fixed, or until nothing changes.
        rng: for `start` = 'random'.

    Raises:
        InputError: if a client fits no aggregator, or settings cannot be combined.
    """
    aggregators, chosen = problem.network.aggregators, f"clustering.objective = {objective!r}"
    by_time, by_merges = objective == "time", objective == "progress"
    unused = _given(seconds=None if by_time else seconds, mixing=MIXING if by_merges else mixing)
    for told in [*unused, *_given(refine=refine and by_merges)]:
        warn(f"{told}: has no effect with {chosen}", SettingWarning, 2)
    if objective != "bound":
        if by_time and seconds is None:
            raise InputError("clustering.seconds is not set, but clustering.objective = 'time' needs it")
        _refuse(chosen, overshoot=overshoot, opening=opening, start=start, passes=passes)
        if by_time and seconds is not None:
            return Clustering(feduc_for_time(problem, seconds, refine), aggregators)
        return Clustering(feduc_for_progress(problem, mixing), aggregators)
    if opening != "none":
        _refuse(f"clustering.opening = {opening!r}", overshoot=overshoot)
    check_opening(problem, opening)
    if start == "random" and rng is None:
        raise InputError("clustering.start = 'random': needs rng")
    labels = _placed(problem, overshoot, opening, choose if start == "greedy" or rng is None else pick_at_random(rng))
    labels = place_again(problem, labels, passes, may_empty=opening == "none")
    if refine or opening == "refine":
        labels = refine_labels(problem, labels, may_empty=opening == "none")
    return Clustering(labels, aggregators)


def _placed(problem: Problem, overshoot: bool, opening: Opening, pick: Pick) -> Ids:
    """Return each client's aggregator after the opening and the pass over all clients."""
    if opening in ("first", "nearest"):
        opened = open_first(problem, pick) if opening == "first" else open_nearest(problem)
        return feduc_labels(problem, opened=opened, pick=pick)
    labels = feduc_labels(problem, overshoot, pick=pick)
    return labels if opening == "none" else fill_empty(problem, labels)


def _refuse(other: str, **given: float | str | None) -> None:
    """Refuse settings that cannot be combined with another one, unless they have their defaults."""
    for told in _given(**given):
        raise InputError(f"{told}: cannot be used with {other}")


def _given(**given: float | str | None) -> list[str]:
    """Return the settings that do not have their defaults."""
    defaults = {"opening": "none", "start": "greedy", "passes": 0, "seconds": None, "mixing": MIXING}
    return [f"clustering.{key} = {show(value)}" for key, value in given.items() if value != defaults.get(key, False)]
