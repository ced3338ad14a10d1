"""What nodes answered to a call, and the clusters' updates from what of it counts."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np

from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.aggregation.usual_norms import are_few, limits_of, require_usual
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.engine.combining import combine_updates
from atoll.fleet.server.replies import CheckedUpdate
from atoll.local.models import Model
from atoll.support.arrays import Mask

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Collected(Generic[Result]):
    """A group's replies: good results by client, numbers of missing or rejected ones by reason, norms if learned."""

    results: dict[int, Result]
    refused: Counter[str]
    norms: dict[int, float] = field(default_factory=dict)


Replies = Collected[CheckedUpdate]
Refuse = Callable[[Replies, int, str], None]
"""Lets a client's result count no longer, for a reason."""


def leave_out_unusual(
    cohorts: Sequence[Cohort],
    collected: Sequence[Replies],
    screening: Screening,
    refuse: Refuse,
    name_of: Callable[[int], str],
) -> None:
    """Reject updates that are much longer than usual, as `engine.combining` does; note the others' norms."""
    pairs = list(zip(cohorts, collected, strict=True))
    for event, of_event in groupby(pairs, lambda pair: pair[0].event):
        together = list(of_event)
        for cohort, replies in together:
            for client, result in replies.results.items():
                replies.norms[client] = screening.usual_norm(result.outcome, cohort.start)
        if screening.usual_norms == "note":
            continue
        known = [cohort.usual for cohort, _ in together]
        norms = tuple((norm, client) for _, replies in together for client, norm in replies.norms.items())
        limits = limits_of(event, known, norms if any(map(are_few, known)) else (), name_of)
        unusual: dict[int, float] = {}
        for limit, (_, replies) in zip(limits, together, strict=True):
            above = {client: norm for client, norm in replies.norms.items() if norm > limit}
            unusual |= above
            for client in above:
                refuse(replies, client, "unusual")
        accepted = sum(len(replies.results) for _, replies in together)
        require_usual(event, accepted, unusual, max(limits), name_of)


def average_sound(
    cohorts: Sequence[Cohort],
    combine: Combine,
    collected: Sequence[Replies],
    is_sound: Callable[[Model], bool],
    refuse: Refuse,
) -> list[ClusterUpdate]:
    """Combine each cohort's results, without those that make its model unsound."""
    while True:
        updates = _average_all(cohorts, combine, collected)
        pairs = zip(collected, updates, strict=True)
        bad = [replies for replies, update in pairs if replies.results and not is_sound(update.model)]
        if not bad:
            return updates
        for replies in bad:  # the others are combined again, since their share of the event has changed
            unsound = [client for client, result in replies.results.items() if not is_sound(result.outcome.model)]
            for client in unsound or list(replies.results):  # if each alone is sound, none counts
                refuse(replies, client, "unsound")


def _average_all(cohorts: Sequence[Cohort], combine: Combine, collected: Sequence[Replies]) -> list[ClusterUpdate]:
    """Combine each cohort's results; a client lost to an event counts in none of its clusters."""
    lost: Counter[int] = Counter()
    answered = []
    for cohort, replies in zip(cohorts, collected, strict=True):
        answered.append(np.array([client in replies.results for client in cohort.clients.tolist()], bool))
        lost[cohort.event] += cohort.weights[~answered[-1]].sum()
    return [
        _average(replace(cohort, event_weight=cohort.event_weight - lost[cohort.event]), combine, replies, there)
        for cohort, replies, there in zip(cohorts, collected, answered, strict=True)
    ]


def _average(cohort: Cohort, combine: Combine, replies: Replies, answered: Mask) -> ClusterUpdate:
    """Combine the available results in client order."""
    if not answered.any():
        return ClusterUpdate(cohort.start, math.nan, 0.0, replies.refused, answered)
    there = replace(cohort, clients=cohort.clients[answered], weights=cohort.weights[answered])
    updates = (replies.results[client].outcome for client in there.clients.tolist())
    (average,) = combine_updates([there], combine, updates)
    arrived = 1.0 if answered.all() else float(there.weights.sum() / cohort.weights.sum())
    norms = tuple((replies.norms[client], client) for client in there.clients.tolist() if client in replies.norms)
    return replace(average, arrived=arrived, refused=replies.refused, answered=answered, norms=norms)
