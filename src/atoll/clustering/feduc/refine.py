"""Local search after the greedy pass: single moves and swaps of two clients, as long as the bound falls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.problem import Problem
from atoll.network.completion import cluster_seconds, completion_of
from atoll.network.topology import is_cut
from atoll.support.arrays import Floats, Ids

GAIN = 1e-9  # relative gain that a change must exceed, so that rounding cannot keep the search going
CHANGES = 200_000  # moves and swaps tried at most
PASSES = 2  # a limited refinement of several clusterings tries every move this many times
Measure = Callable[[Problem, Ids], float]
"""The quantity that a search lowers."""


def _bound(problem: Problem, labels: Ids) -> float:
    return evaluate(problem, labels).bound


def refine(
    problem: Problem, labels: Ids, changes: int = CHANGES, may_empty: bool = True, measure: Measure = _bound
) -> Ids:
    """Return labels whose bound no single move or swap lowers; never worse than those given.

    Each client in turn moves to the aggregator that gives the least bound; when no move helps, each pair of clients of
    different clusters is swapped if that lowers the bound, and moves are tried again. Limits are kept; a cluster that
    exceeds its limit does not get longer. Clients with -1 stay out. After `changes` moves and swaps no more are tried;
    unless `may_empty`, an aggregator's last client stays.
    """
    search = _Search(problem, labels.copy(), measure(problem, labels), changes, may_empty, measure)
    while search.left > 0:
        if not _move_all(search) and not _swap_all(search):
            break
    return search.labels


def best_refined(problem: Problem, starts: Sequence[Ids], measure: Measure = _bound) -> Ids:
    """Return the best of several clusterings after a limited refinement of each, refined fully.

    No refinement disconnects aggregators that are connected, and clusterings that do are a last resort.
    """

    def refined(labels: Ids, changes: int = CHANGES) -> Ids:
        whole = problem.pattern.startswith("dec") and not is_cut_by(problem, labels)
        return refine(problem, labels, changes, may_empty=not whole, measure=measure)

    moves = PASSES * problem.network.clients * problem.network.aggregators
    found = [refined(labels, moves) for labels in starts]
    return refined(min(found, key=lambda labels: (is_cut_by(problem, labels), measure(problem, labels))))


def is_cut_by(problem: Problem, labels: Ids) -> bool:
    """Return whether aggregators without clients disconnect the others, in the decentralised patterns."""
    return problem.pattern.startswith("dec") and is_cut(problem.network.neighbours, np.unique(labels).tolist())


@dataclass(eq=False)
class _Search:
    """The best labels so far, their bound, and which changes may still be tried."""

    problem: Problem
    labels: Ids
    bound: float
    left: int
    may_empty: bool
    measure: Measure

    def __post_init__(self) -> None:
        self.allowed: Floats = np.maximum(self.problem.limits, completion_of(self.problem.network, self.labels))

    def fits(self, aggregator: int, members: Ids) -> bool:
        return bool(cluster_seconds(self.problem.network, members, aggregator) <= self.allowed[aggregator])

    def gains(self, labels: Ids) -> bool:
        """Keep labels, which are within the limits, if their bound is lower; return whether it is."""
        bound = self.measure(self.problem, labels)
        if not bound < self.bound - GAIN * abs(self.bound):
            return False
        self.labels, self.bound = labels, bound
        completion = completion_of(self.problem.network, labels)
        self.allowed = np.maximum(self.problem.limits, np.minimum(self.allowed, completion))
        return True


def _move_all(search: _Search) -> bool:
    """Move each client to the aggregator that gives the least bound; return whether any moved."""
    moved = False
    for client in np.flatnonzero(search.labels >= 0).tolist():
        origin = search.labels[client]
        if not search.may_empty and np.count_nonzero(search.labels == origin) == 1:
            continue
        for aggregator in range(search.problem.network.aggregators):
            if aggregator == origin or search.left <= 0:
                continue
            search.left -= 1
            if search.fits(aggregator, _with(search.labels, aggregator, joins=client)):
                labels = search.labels.copy()
                labels[client] = aggregator
                moved |= search.gains(labels)
    return moved


def _swap_all(search: _Search) -> bool:
    """Swap each pair of clients of different clusters if that lowers the bound; return whether any was swapped."""
    swapped = False
    for first, second in combinations(np.flatnonzero(search.labels >= 0).tolist(), 2):
        if search.left <= 0:
            break
        own, other = search.labels[[first, second]].tolist()
        if own == other:
            continue
        search.left -= 1
        if not search.fits(other, _with(search.labels, other, joins=first, leaves=second)):
            continue
        if search.fits(own, _with(search.labels, own, joins=second, leaves=first)):
            labels = search.labels.copy()
            labels[[first, second]] = other, own
            swapped |= search.gains(labels)
    return swapped


def _with(labels: Ids, aggregator: int, joins: int, leaves: int = -1) -> Ids:
    """Return a cluster's clients, ascending, after one joins and perhaps one leaves."""
    there = labels == aggregator
    there[joins] = True
    if leaves >= 0:
        there[leaves] = False
    return np.flatnonzero(there)
