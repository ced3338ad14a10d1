"""Further passes: every client is placed again by Algorithm 2, now that all others are placed."""

import numpy as np

from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.greedy import choose, placing_order
from atoll.clustering.feduc.problem import Problem
from atoll.support.arrays import Floats, Ids


def place_again(problem: Problem, labels: Ids, passes: int, may_empty: bool = True) -> Ids:
    """Return labels after this many passes, or fewer if one changes nothing.

    In a pass each client, by decreasing data size, goes where the bound over all clients is least while the others
    stay. Limits are kept; a cluster that exceeds its limit does not get longer. Unless `may_empty`, an aggregator's
    last client stays. A pass costs N x M bounds.
    """
    for _ in range(passes):
        before, labels = labels, _one_pass(problem, labels.copy(), may_empty)
        if np.array_equal(before, labels):
            break
    return labels


def _one_pass(problem: Problem, labels: Ids, may_empty: bool) -> Ids:
    for client in placing_order(problem).tolist():
        own = labels[client]
        if may_empty or np.count_nonzero(labels == own) > 1:
            bounds, completions = _candidates(problem, labels, client)
            allowed = completions <= problem.limits
            allowed[own] = True
            labels[client] = choose(bounds, completions, allowed)  # type: ignore[assignment]  # its own place is allowed
    return labels


def _candidates(problem: Problem, labels: Ids, client: int) -> tuple[Floats, Floats]:
    """Return the bound, and the cluster's completion, with the client at each aggregator, [aggregators] each."""
    bounds, completions = np.empty((2, problem.network.aggregators))
    tried = labels.copy()
    for aggregator in range(len(bounds)):
        tried[client] = aggregator
        bound = evaluate(problem, tried)
        bounds[aggregator], completions[aggregator] = bound.bound, bound.completion_seconds[aggregator]
    return bounds, completions
