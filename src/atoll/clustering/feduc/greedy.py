"""FedUC's clustering (Algorithm 2): client by client, each to the aggregator that gives the least bound."""

from collections.abc import Callable

import numpy as np

from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.feasible import make_room
from atoll.clustering.feduc.incremental.bounds import start
from atoll.clustering.feduc.problem import Problem, check
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import InputError

TIE = 1e-12  # numbers within this relative distance of the least count as ties, so that rounding does not decide

Pick = Callable[[Floats, Floats, Mask], int | None]
"""Chooses an aggregator by bounds, completions and which are allowed, [aggregators] each; None if none is."""

Stuck = Callable[[Ids, int, Floats], Ids | int | None]
"""Called with labels, a client that fits nowhere and completions; returns new labels, its aggregator, or None."""


def placing_order(problem: Problem) -> Ids:
    """Return the clients by decreasing data size; on ties the lower index is first."""
    return np.argsort(-problem.sizes, kind="stable")


def choose(bounds: Floats, completion_seconds: Floats, allowed: Mask) -> int | None:
    """Return the allowed aggregator with the least bound; on ties the shorter completion, then the lower index.

    All arguments are [aggregators]; numbers that differ by rounding (`TIE`) are ties. None if nothing is allowed.
    """
    best = np.flatnonzero(allowed)
    if not len(best):
        return None
    best = best[_least(bounds[best])]
    return int(best[_least(completion_seconds[best])][0])


def pick_at_random(rng: np.random.Generator) -> Pick:
    """Return a rule that picks any allowed aggregator with equal probability."""

    def pick(bounds: Floats, completion_seconds: Floats, allowed: Mask) -> int | None:
        possible = np.flatnonzero(allowed)
        return int(rng.choice(possible)) if len(possible) else None

    return pick


def _least(values: Floats) -> Mask:
    least = values.min()
    return np.asarray(values <= least + TIE * abs(least))  # rounding can leave a bound just below 0


def feduc_labels(problem: Problem, overshoot: bool = False, opened: Ids | None = None, pick: Pick = choose) -> Ids:
    """Return each client's aggregator by Algorithm 2, int64 [clients].

    F_temp, which the printed algorithm never resets, is reset for each client. Bounds are over the clients placed
    so far. With M aggregators a client costs O(M) operations with a server and O(M^2) without (`incremental`), and
    DecSyn more if the run is too short for the infinite sum (`incremental.powers`).

    With `overshoot` a client for which no room is found is placed where it exceeds the limit least. `opened` holds the
    labels of clients already placed, -1 for the others, [clients]; their aggregators never become empty again.
    """
    check(problem)
    within_limits = True

    def stuck(labels: Ids, client: int, completions: Floats) -> Ids | int:
        nonlocal within_limits
        if within_limits:
            try:
                moved = make_room(problem, labels, client, may_empty=opened is None)
            except InputError:  # no proof within the time limit
                if not overshoot:
                    raise
                moved = None
            if moved is not None:
                return moved
            if not overshoot:
                raise _no_room(problem, client, completions)
        within_limits = False
        return int((completions - problem.limits).argmin())

    labels = np.full(problem.network.clients, -1, np.int64) if opened is None else opened.copy()
    placed = place_in_turn(problem, labels, pick, stuck)
    assert placed is not None
    return placed


def place_in_turn(problem: Problem, labels: Ids, pick: Pick, stuck: Stuck) -> Ids | None:
    """Place all clients with label -1, in `placing_order`; None if `stuck` gives up."""
    state = start(problem, labels)
    for client in placing_order(problem).tolist():
        if labels[client] >= 0:
            continue
        bounds, completions = state.candidates(client)  # with this client at each aggregator in turn
        aggregator = pick(bounds, completions, completions <= problem.limits)
        found = stuck(labels, client, completions) if aggregator is None else aggregator
        if found is None:
            return None
        if isinstance(found, int):
            labels[client] = found
            state.place(client, found)
        else:
            labels, state = found, start(problem, found)
    return labels


def _no_room(problem: Problem, client: int, completions: Floats) -> InputError:
    alone = problem.network.compute_seconds[client] + problem.network.upload_seconds[client]
    reason, seconds = "and moving clients placed before it does not make room", completions
    if (alone > problem.limits).all():
        reason, seconds = "even alone", alone
    aggregator = int((seconds - problem.limits).argmin())
    return InputError(
        f"clustering.time_limit = {problem.limits[aggregator]:g}: client {client} fits no aggregator, {reason} "
        f"(its least completion is {seconds[aggregator]:.4g} s at aggregator {aggregator}); "
        "raise clustering.time_limit or, without clustering.opening or objective, set clustering.overshoot = true"
    )


def place_again(problem: Problem, labels: Ids, passes: int, may_empty: bool = True) -> Ids:
    """Return labels after this many further passes, or fewer if one changes nothing.

    In a pass each client, by decreasing data size, goes where the bound over all clients is least while the others
    stay. Limits are kept; a cluster that exceeds its limit does not get longer. Unless `may_empty`, an aggregator's
    last client stays. A pass costs N x M bounds.
    """
    for _ in range(passes):
        before, labels = labels, labels.copy()
        for client in placing_order(problem).tolist():
            own = labels[client]
            if may_empty or np.count_nonzero(labels == own) > 1:
                bounds, completions = _candidates(problem, labels, client)
                allowed = completions <= problem.limits
                allowed[own] = True  # so that one is chosen
                labels[client] = choose(bounds, completions, allowed)  # type: ignore[assignment]
        if np.array_equal(before, labels):
            break
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
