"""A clustering by the predicted training time, with one constant measured in runs.

Measured on the paper's network (docs/papers/feduc.md), the number of merges to a target depends on the clustering
mainly through one quantity: how much the data that a merge combines differs from all data. So

    seconds to a target  ~  E * exp(mixing * V)

E is the time between two merges; in the asynchronous patterns, the time in which merges replace one whole model: the
inverse of the sum of beta_j / event_seconds_j. V is the squared deviation of the gradients that a merge combines, as a
share of the clients' own: 0 in CenSyn; in CenAsy that of the clusters weighted by how often and with what weight
they merge; otherwise the mean over aggregators of their neighbourhoods'. Unlike in the bound, deviations of
different clusters cancel.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from atoll.clustering.feduc.bound import clock_of, mean_deviations, samples_of
from atoll.clustering.feduc.formulas import mixing_matrix
from atoll.clustering.feduc.greedy import feduc_labels
from atoll.clustering.feduc.problem import Problem
from atoll.clustering.feduc.refine import best_refined
from atoll.clustering.feduc.time_budget import simple_starts
from atoll.network.completion import completion_of
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

MIXING = 18.0  # measured: see docs/papers/feduc.md


@dataclass(frozen=True)
class SearchProgress:
    """The terms of the prediction.

    Attributes:
        seconds: E, between two merges of whole models.
        unlike: V, from 0, where every merge combines all data, to 1.
    """

    seconds: float
    unlike: float

    def log_seconds(self, mixing: float) -> float:
        """Return the logarithm of the predicted seconds to a target, up to a constant."""
        return math.log(self.seconds) + mixing * self.unlike


def progress_of(problem: Problem, labels: Ids) -> SearchProgress:
    """Return the time between merges, and how much the data that they combine differs from all data."""
    samples = samples_of(problem, labels)
    used = np.flatnonzero(samples)
    held, events = samples[used], clock_of(problem, labels, samples)[1][used]
    if not (events.min() if problem.pattern.endswith("asy") else events.max()) > 0:
        told = f"network: an event of aggregator {used[events.argmin()]} takes 0 seconds"
        raise InputError(f"{told}: must take longer with clustering.objective = 'progress'")
    if problem.pattern == "censyn":
        return SearchProgress(float(events.max()), 0.0)
    means, _, _ = mean_deviations(problem, labels, used, held)
    if problem.pattern == "cenasy":
        met = float(np.square((held / events) @ means / (held / events).sum()).sum())
    else:
        met = float(held @ np.square(mixing_matrix(problem, used, held) @ means).sum(axis=1) / held.sum())
    seconds = events.max() if problem.pattern == "decsyn" else held.sum() / (held / events).sum()
    return SearchProgress(float(seconds), met / _alone(problem))


@lru_cache(maxsize=1)
def _alone(problem: Problem) -> float:
    """Return the mean squared deviation of single clients; 1 if all are equal."""
    return float(problem.sizes @ np.square(problem.deviations).sum(axis=1) / problem.sizes.sum()) or 1.0


def feduc_for_progress(problem: Problem, mixing: float = MIXING) -> Ids:
    """Return the clustering with the least predicted time to a target that local search finds, [clients].

    It starts from the shortest uploads, also with equal cluster sizes, from clients grouped by speed, and from
    Algorithm 2, and is never worse than these by `SearchProgress.log_seconds`.
    """
    starts = list({labels.tobytes(): labels for labels in _starts(problem)}.values())
    return best_refined(problem, starts, lambda problem, labels: progress_of(problem, labels).log_seconds(mixing))


def _starts(problem: Problem) -> Iterator[Ids]:
    """Yield clusterings to start from; on ties, as in CenSyn, where V is 0, the first stays the best."""
    yield from simple_starts(problem)
    yield feduc_labels(problem)
    labels = _by_speed(problem)
    if (completion_of(problem.network, labels) <= problem.limits).all():
        yield labels


def _by_speed(problem: Problem) -> Ids:
    """Return clients grouped by speed, each group assigned so that uploads take the least total time."""
    from scipy.optimize import linear_sum_assignment  # loads slowly

    network = problem.network
    groups = np.array_split(np.argsort(network.compute_seconds, kind="stable"), network.aggregators)
    cost: Floats = np.array([network.upload_seconds[group].sum(axis=0) for group in groups])
    labels = np.empty(network.clients, np.int64)
    for group, aggregator in zip(groups, linear_sum_assignment(cost)[1].tolist(), strict=True):
        labels[group] = aggregator
    return labels
