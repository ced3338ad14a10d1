"""FedUC's clustering for a given virtual time instead of a number of rounds; also chooses the time limit.

In a given time a synchronous pattern makes as many inter-cluster aggregations as its slowest cluster allows, an
asynchronous one as many as all clusters' speeds add up to. So a low time limit favours many aggregations and a high
one well-mixed clusters, and this one number is searched. In the decentralised patterns a clustering whose aggregators
without clients cut the others into parts is a last resort.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.feasible import chain_of_moves
from atoll.clustering.feduc.greedy import choose, feduc_labels, place_in_turn, placing_order
from atoll.clustering.feduc.problem import Problem
from atoll.clustering.feduc.refine import best_refined, is_cut_by
from atoll.network.completion import completion_of
from atoll.support.arrays import Floats, Ids

GRID = 12  # time limits tried between the least and the longest
HALVINGS = 3  # times that limits next to the best one are tried
REFINED = 6  # best distinct clusterings that are refined


def within(problem: Problem, seconds: float) -> Problem:
    """Return the problem with the bound after this much virtual time; each clustering has its own T.

    Unless `tau_max` is given it is 0: every merge counts. With the largest staleness, R / (1 + tau_max) would be the
    time multiplied by the slowest cluster's frequency, as if faster clusters' merges were worthless.
    """
    return replace(problem, seconds=seconds, tau_max=0.0 if problem.tau_max is None else problem.tau_max)


def feduc_for_time(problem: Problem, seconds: float, refine: bool = True) -> Ids:
    """Return the clustering with the least bound after `seconds` of virtual time, [clients].

    The bound is that of `within`, and the problem's limits are never exceeded. For each of several time limits, on a
    geometric grid and then in finer steps next to the best one, the greedy pass (Algorithm 2) runs twice: with the
    bound after `seconds`, and with the bound after the rounds that clusters as slow as the limit make in `seconds`.
    Other starts are the greedy pass with the problem's own limits (also with its own `steps`), each client at its
    shortest upload, and the same with equal cluster sizes. If `refine`, the best ones are improved by moves and swaps.
    So the result is never worse, at that time, than any of these; in the decentralised patterns, than any that is not
    cut.
    """
    timed = within(problem, seconds)
    candidates = [feduc_labels(timed), feduc_labels(problem), *simple_starts(problem)]
    longest = float(completion_of(problem.network, candidates[0]).max())
    tried: dict[float, float] = {longest: evaluate(timed, candidates[0]).bound}

    def attempt(limit: float) -> bool:
        made = [labels for version in _versions(timed, limit) if (labels := _greedy_within(version)) is not None]
        if made:
            tried[limit] = min(evaluate(timed, labels).bound for labels in made)
            candidates.extend(made)
        return bool(made)

    all(map(attempt, _grid(problem, longest)))  # up to the first that does not fit: shorter ones do not either
    for _ in range(HALVINGS):
        known = sorted(tried)
        at = known.index(min(known, key=lambda limit: (tried[limit], limit)))
        for beside in [known[k] for k in (at - 1, at + 1) if 0 <= k < len(known)]:
            attempt(float(np.sqrt(known[at] * beside)))
    different = {labels.tobytes(): labels for labels in candidates}.values()
    best = sorted(different, key=lambda labels: (is_cut_by(timed, labels), evaluate(timed, labels).bound))
    return best_refined(timed, best[:REFINED]) if refine else best[0]


def _grid(problem: Problem, longest: float) -> Floats:
    """Return time limits from the longest (exclusive) to the least with which each client fits; none if that is 0."""
    alone = problem.network.compute_seconds[:, None] + np.asarray(problem.network.upload_seconds)
    shortest = min(float(alone.min(axis=1).max()), longest)
    return np.geomspace(longest, shortest, GRID + 1)[1:] if shortest > 0 else np.empty(0)


def _versions(timed: Problem, limit: float) -> Iterator[Problem]:
    """Yield the problems that the greedy pass solves for one time limit: the given time, or the rounds made in it."""
    limits = np.minimum(timed.limits, limit)
    yield replace(timed, limits=limits)
    clusters = 1 if timed.pattern.endswith("syn") else timed.network.aggregators
    assert timed.seconds is not None
    events = round(clusters * timed.seconds / (timed.intra_rounds * limit))
    yield replace(timed, limits=limits, seconds=None, steps=max(events, 1) * timed.period)


def _greedy_within(problem: Problem) -> Ids | None:
    """Return Algorithm 2's clustering, or None if a client fits nowhere and no short chain of moves helps.

    Unlike in `feduc_labels`, None proves nothing: a proof can take a minute, and there are many limits to try.
    """
    labels = np.full(problem.network.clients, -1, np.int64)
    return place_in_turn(problem, labels, choose, lambda labels, client, _: chain_of_moves(problem, labels, client))


def simple_starts(problem: Problem) -> Iterator[Ids]:
    """Yield the clusterings by shortest upload, without and with a cap on sizes, that are within the limits."""
    network = problem.network
    seats = -(-network.clients // network.aggregators)
    for most in (network.clients, seats):
        labels = np.full(network.clients, -1, np.int64)
        free = np.full(network.aggregators, most)
        for client in placing_order(problem).tolist():
            labels[client] = np.where(free > 0, network.upload_seconds[client], np.inf).argmin()
            free[labels[client]] -= 1
        if (completion_of(network, labels) <= problem.limits).all():
            yield labels
