"""FedUC's limits as an integer program: an assignment of all clients, or a proof that there is none.

In Theorem 5's order a cluster's completion (50) is the largest, over its clients, of a client's training time plus the
uploads of all clients not before it. So the limits are linear in the assignment x: for every aggregator j and every
client i whose training alone is within the limit,

    sum over the clients i' not before i of L^u_i'j x_i'j <= L_j^max - L^c_i.

If i is a client of j, this is its part of the limit; if not, it follows from the first client of j after i.
"""

from time import monotonic
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from atoll.clustering.feduc.problem import Problem
from atoll.network.completion import completion_seconds
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

SEARCH_SECONDS = 60.0  # wall-clock time for an assignment, or a proof that there is none
LARGEST_PROGRAM = 10_000_000  # entries of the program's matrix; more would take gigabytes and hours


class _Pairs(NamedTuple):
    """Pairs of a client and an aggregator where it fits alone, by aggregator and then training time, [pairs] each."""

    clients: Ids
    aggregators: Ids
    compute: Floats
    upload: Floats
    limit: Floats

    def entries(self) -> int:
        """Count the entries of `_limits`."""
        sizes = np.bincount(self.aggregators)
        return int((sizes * (sizes + 1) // 2).sum())

    def fits(self, together: Ids) -> bool:
        """Return whether pairs of one aggregator keep its limit together."""
        return bool(completion_seconds(self.compute[together], self.upload[together]) <= self.limit[together[0]])


def assignment(problem: Problem, clients: Ids, labels: Ids, opened: Ids | None = None) -> Ids | None:
    """Return `labels` changed so that all these clients have a place within the limits; None proves that none exists.

    The aggregators `opened` each get at least one of these clients. An InputError says that nothing is known after
    `SEARCH_SECONDS`.
    """
    ends = monotonic() + SEARCH_SECONDS
    pairs = _possible_pairs(problem, clients)
    opened = np.empty(0, np.int64) if opened is None else opened
    if len(np.unique(pairs.clients)) < len(clients) or not np.isin(opened, pairs.aggregators).all():
        return None
    if pairs.entries() > LARGEST_PROGRAM:
        raise _given_up(problem, f"{len(clients)} clients are too many to search all assignments")
    too_many: list[Ids] = []  # pairs that exceed the limit together, by less than the solver's tolerance
    while True:
        status, chosen = _solve(pairs, too_many, max(ends - monotonic(), 0.0), opened)
        if status == "impossible":
            return None
        if status == "unknown":
            raise _given_up(problem, f"the search was ended after {SEARCH_SECONDS:g} s without a proof")
        parts = np.split(chosen, np.flatnonzero(np.diff(pairs.aggregators[chosen])) + 1)
        wrong = [part for part in parts if not pairs.fits(part)]
        if not wrong:
            after = labels.copy()
            after[pairs.clients[chosen]] = pairs.aggregators[chosen]
            return after
        too_many += wrong


def may_fit(problem: Problem) -> bool:
    """Return whether all clients fit if they may be split among aggregators, which is quick to check."""
    clients = np.arange(problem.network.clients)
    pairs = _possible_pairs(problem, clients)
    if len(np.unique(pairs.clients)) < len(clients):
        return False
    return (
        pairs.entries() > LARGEST_PROGRAM
        or _solve(pairs, [], np.inf, pairs.clients[:0], whole=False)[0] != "impossible"
    )


def _possible_pairs(problem: Problem, clients: Ids) -> _Pairs:
    network = problem.network
    clients = clients[np.argsort(network.compute_seconds[clients], kind="stable")]
    compute, upload = network.compute_seconds[clients], network.upload_seconds[clients]
    limits = np.minimum(problem.limits, 2 * (compute.max() + upload.sum(axis=0)) + 1)  # finite, and never exceeded
    j, i = np.nonzero((compute[:, None] + upload <= limits).T)
    return _Pairs(clients[i], j, compute[i], upload[i, j], limits[j])


def _solve(
    pairs: _Pairs, too_many: list[Ids], seconds: float, opened: Ids, whole: bool = True
) -> tuple[Literal["found", "impossible", "unknown"], Ids]:
    """Choose one pair for each client so that the limits hold; return the pairs chosen.

    If not `whole`, clients may be split, and only "impossible" is meaningful. Minimising the moves would be far slower:
    some cases of 100 clients that take seconds would not be decided within a minute.
    """
    count = len(pairs.clients)
    pair = np.arange(count)
    one_each = csr_array((np.ones(count), (np.unique(pairs.clients, return_inverse=True)[1], pair)))
    constraints = [LinearConstraint(one_each, lb=1, ub=1), _limits(pairs)]
    if too_many:
        cuts = [np.isin(pair, part).astype(float) for part in too_many]
        constraints.append(LinearConstraint(np.stack(cuts), ub=[len(part) - 1 for part in too_many]))
    if len(opened):
        constraints.append(LinearConstraint(csr_array((opened[:, None] == pairs.aggregators).astype(float)), lb=1))
    result = milp(
        np.zeros(count),
        integrality=np.full(count, int(whole)),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"time_limit": seconds},
    )
    if result.status == 2:
        return "impossible", pair[:0]
    if result.status != 0:  # a choice found so far would depend on the machine's speed
        return "unknown", pair[:0]
    return "found", np.flatnonzero(result.x > 0.5)


def _limits(pairs: _Pairs) -> LinearConstraint:
    """Return the limits, one row a pair, each divided by the limit so that the solver's tolerance is relative."""
    pair = np.arange(len(pairs.clients))
    ends = np.searchsorted(pairs.aggregators, pairs.aggregators, side="right")
    before = np.repeat(pair, ends - pair)
    column = np.arange(len(before)) - np.repeat(np.cumsum(ends - pair) - ends, ends - pair)
    share = pairs.upload / pairs.limit
    return LinearConstraint(csr_array((share[column], (before, column))), ub=1 - pairs.compute / pairs.limit)


def _given_up(problem: Problem, why: str) -> InputError:
    longest = float(problem.limits.max())
    return InputError(
        f"clustering.time_limit = {longest:g}: {why}, so it is unknown whether all clients fit; "
        "raise clustering.time_limit or, without clustering.opening or objective, set clustering.overshoot = true"
    )
