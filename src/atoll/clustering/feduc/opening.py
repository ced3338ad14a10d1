"""Openings: every aggregator gets a client, as Theorem 1's proof assumes with beta_j in (0, 1].

Algorithm 2 as printed leaves some aggregators empty: a single client is the worst-mixed cluster possible, so the bound
never opens the last ones unless it would lose even more elsewhere.
"""

from typing import Literal

import numpy as np

from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.greedy import Pick, choose, placing_order
from atoll.clustering.feduc.incremental.bounds import start
from atoll.clustering.feduc.problem import Problem, check
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import InputError

Opening = Literal["none", "first", "nearest", "refine"]


def check_opening(problem: Problem, opening: Opening) -> None:
    """Refuse to open more aggregators than there are clients."""
    clients, aggregators = problem.network.clients, problem.network.aggregators
    if opening != "none" and clients < aggregators:
        raise InputError(
            f"clustering.opening = {opening!r}: {clients} clients cannot open clustering.clusters = {aggregators} "
            "aggregators; lower clustering.clusters"
        )


def open_first(problem: Problem, pick: Pick = choose) -> Ids:
    """Place the first M clients of the queue, each at its own aggregator; return labels, -1 for the others.

    In turn, each opens the aggregator that `pick` chooses among those still empty and within their limit: the one
    with the least bound. If none is left for a client, as few as possible of those before it move.
    """
    check(problem)
    labels = np.full(problem.network.clients, -1, np.int64)
    empty = np.ones(problem.network.aggregators, bool)
    state = start(problem, labels)
    for client in placing_order(problem)[: len(empty)].tolist():
        bounds, completions = state.candidates(client)
        aggregator = pick(bounds, completions, empty & (completions <= problem.limits))
        if aggregator is None:
            state = start(problem, labels := _moved_openers(problem, labels, client))
        else:
            labels[client] = aggregator
            state.place(client, aggregator)
        empty[labels[labels >= 0]] = False
    return labels


def open_nearest(problem: Problem) -> Ids:
    """Place one client at each aggregator with the least total upload time; return labels, -1 for the others."""
    check(problem)
    cost = np.where(_fits_alone(problem), np.asarray(problem.network.upload_seconds), np.inf)
    if (nobody := np.flatnonzero(~np.isfinite(cost).any(axis=0))).size:
        raise InputError(f"clustering.opening = 'nearest': {_too_far(problem, int(nobody[0]))}")
    openers = _matching(cost.T)
    if openers is None:
        raise InputError(
            "clustering.opening = 'nearest': no choice of one client per aggregator keeps clustering.time_limit; "
            "raise it or lower clustering.clusters"
        )
    labels = np.full(problem.network.clients, -1, np.int64)
    labels[openers] = np.arange(len(openers))
    return labels


def fill_empty(problem: Problem, labels: Ids) -> Ids:
    """Return labels in which every aggregator has a client, moving one to each empty one in turn.

    This is the client, of a cluster of at least two, whose move within the limit gives the least bound. If there is
    none, an integer program places all clients again.
    """
    fits = _fits_alone(problem)
    for aggregator in np.setdiff1d(np.arange(problem.network.aggregators), labels).tolist():
        crowded = np.bincount(labels, minlength=problem.network.aggregators)[labels] > 1
        movable = np.flatnonzero(crowded & fits[:, aggregator])
        if not len(movable):
            return _filled(problem, labels, aggregator)
        moves = np.where(np.arange(len(labels)) == movable[:, None], aggregator, labels)
        labels = moves[np.argmin([evaluate(problem, moved).bound for moved in moves])]
    return labels


def _fits_alone(problem: Problem) -> Mask:
    """Return whether each client alone keeps each aggregator's limit, [clients, aggregators]."""
    network = problem.network
    return np.asarray(network.compute_seconds[:, None] + np.asarray(network.upload_seconds) <= problem.limits)


def _moved_openers(problem: Problem, labels: Ids, client: int) -> Ids:
    """Return labels in which one more client opens an aggregator, with the fewest moves of earlier openers."""
    openers = np.append(np.flatnonzero(labels >= 0), client)
    fits = _fits_alone(problem)[openers]
    stays = np.arange(problem.network.aggregators) == labels[openers][:, None]
    aggregators = _matching(np.where(fits, np.where(stays, 0.0, 1.0), np.inf))
    if aggregators is None:
        alone = problem.network.compute_seconds[client] + problem.network.upload_seconds[client]
        nearest = int((alone - problem.limits).argmin())
        raise InputError(
            f"clustering.opening = 'first': client {client} can open no aggregator within clustering.time_limit "
            f"(alone it takes {alone[nearest]:.4g} s at aggregator {nearest}, whose limit is "
            f"{problem.limits[nearest]:g} s), even if those before it move; raise clustering.time_limit"
        )
    labels = labels.copy()
    labels[openers] = aggregators
    return labels


def _matching(cost: Floats) -> Ids | None:
    """Return a distinct column for each row with the least sum of costs, or None if every choice costs infinity."""
    from scipy.optimize import linear_sum_assignment  # here, since SciPy's solvers load slowly

    try:
        return np.asarray(linear_sum_assignment(cost)[1])
    except ValueError:  # "cost matrix is infeasible"
        return None


def _filled(problem: Problem, labels: Ids, aggregator: int) -> Ids:
    from atoll.clustering.feduc.program import assignment

    everyone = np.arange(problem.network.clients)
    filled = assignment(problem, everyone, labels, opened=np.arange(problem.network.aggregators))
    if filled is None:
        raise InputError(f"clustering.opening = 'refine': {_too_far(problem, aggregator)}")
    return filled


def _too_far(problem: Problem, aggregator: int) -> str:
    alone = problem.network.compute_seconds + problem.network.upload_seconds[:, aggregator]
    client, limit = int(alone.argmin()), problem.limits[aggregator]
    told = f"gets no client within its limit of {limit:g} s (client {client} alone takes {alone[client]:.4g} s there)"
    if alone[client] <= limit:
        told = "gets no client: no assignment was found that leaves no aggregator empty and keeps all limits"
    return f"aggregator {aggregator} {told}; raise clustering.time_limit or lower clustering.clusters"
