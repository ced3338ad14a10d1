"""The optimal clustering by exhaustive search, for tiny problems: shows how far the greedy pass is from it."""

from collections.abc import Iterator

import numpy as np

from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.problem import Problem
from atoll.network.completion import cluster_seconds
from atoll.support.arrays import Ids
from atoll.support.errors import InputError

MOST = 3**8  # assignments, about a second


def exact(problem: Problem) -> Ids:
    """Return the labels with the least bound among all that keep the limits; on ties the first in lexical order."""
    network = problem.network
    count = network.aggregators**network.clients
    if count > MOST:
        raise InputError(
            f"clustering: {network.clients} clients and {network.aggregators} aggregators: "
            f"the exact optimum is for at most {MOST} assignments, such as 8 clients and 3 aggregators"
        )
    best, least = None, np.inf
    for labels in _within_limits(problem, np.full(network.clients, -1, np.int64), 0):
        bound = evaluate(problem, labels).bound
        if best is None or bound < least:
            best, least = labels.copy(), bound
    if best is None:
        raise InputError(f"clustering.time_limit = {problem.limits.max():g}: no assignment of all clients keeps it")
    return best


def _within_limits(problem: Problem, labels: Ids, client: int) -> Iterator[Ids]:
    """Yield every assignment of this client and the later ones, in place; a further client never shortens a cluster."""
    if client == len(labels):
        yield labels
        return
    network = problem.network
    for aggregator in range(network.aggregators):
        labels[client] = aggregator
        members = np.flatnonzero(labels[: client + 1] == aggregator)
        seconds = cluster_seconds(network, members, aggregator)
        if seconds <= problem.limits[aggregator]:
            yield from _within_limits(problem, labels, client + 1)
