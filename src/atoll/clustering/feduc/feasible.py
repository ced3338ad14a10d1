"""Making room: which clients must move so that one that fits no aggregator does, or a proof that this is impossible.

FedUC's pseudocode (Algorithm 2) places clients one after the other and can get stuck although an assignment exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations

import numpy as np

from atoll.clustering.feduc.problem import Problem
from atoll.network.completion import completion_of
from atoll.network.network import Network
from atoll.support.arrays import Floats, Ids, Mask

CHAINS = 1000  # partial chains that are continued before the integer program takes over
KEPT = 50_000  # partial chains kept at a time
PAIRED = 12  # members of a cluster, those with the longest uploads, that are also displaced in pairs


def make_room(problem: Problem, labels: Ids, client: int, may_empty: bool = True) -> Ids | None:
    """Return labels in which `client` has a place too, or None if that is impossible.

    Chains of moves are tried first, those with few moves before others: the client displaces one or two others, which
    displace others in turn. If none is found, an integer program decides. None is then a proof that the problem's
    clients cannot all be placed within the limits, usually because those placed so far cannot. Where clients send side
    by side there is no such program, and None means that no chain was found.

    `labels` [clients] holds the aggregators of the clients placed so far, within the limits, and -1 for the others,
    which stay without one, except `client`. Unless `may_empty`, an aggregator's last client stays.
    """
    opened = None if may_empty else np.unique(labels[labels >= 0])
    moved = chain_of_moves(problem, labels, client, opened)
    if moved is not None or problem.network.sharing is not None:  # the program models only uploads in turns
        return moved
    from atoll.clustering.feduc.program import assignment, may_fit  # needs SciPy's solvers, which load slowly

    if not may_fit(problem):
        return None
    return assignment(problem, np.append(np.flatnonzero(labels >= 0), client), labels, opened)


@dataclass(frozen=True)
class _Chain:
    """Clients moved so far, with their new aggregators, and displaced clients that have no new place yet."""

    moved: dict[int, int]
    homeless: tuple[int, ...]

    def labels(self, before: Ids) -> Ids:
        after = before.copy()
        after[list(self.moved)] = list(self.moved.values())
        return after


def chain_of_moves(problem: Problem, labels: Ids, client: int, opened: Ids | None = None) -> Ids | None:
    """Return labels as `make_room` does, with the fewest moves that a short search finds; None proves nothing.

    The aggregators `opened`, if given, keep at least one client.
    """
    network, limits = problem.network, problem.limits
    order = np.argsort(network.compute_seconds, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    members = [order[labels[order] == j] for j in range(network.aggregators)]
    easiest = network.upload_seconds.min(axis=1)
    queue: list[tuple[int, float, int, _Chain]] = [(1, 0.0, 0, _Chain({}, (client,)))]
    added = 1
    for _ in range(CHAINS):
        if not queue:
            break
        for chain in _continued(heappop(queue)[-1], network, limits, members, rank):
            if not chain.homeless:
                after = chain.labels(labels)
                stays_open = opened is None or np.isin(opened, after).all()
                if stays_open and (completion_of(network, after) <= limits).all():  # exactly, without rounding
                    return after
            elif added < KEPT:
                moves = len(chain.moved) + len(chain.homeless)
                heappush(queue, (moves, float(easiest[list(chain.homeless)].sum()), added, chain))
                added += 1
    return None


def _continued(chain: _Chain, network: Network, limits: Floats, members: list[Ids], rank: Ids) -> Iterator[_Chain]:
    """Place the first displaced client at each aggregator in turn, the one with the shortest upload first."""
    client, *others = chain.homeless
    alone = network.compute_seconds[client] + network.upload_seconds[client]
    for j in np.argsort(network.upload_seconds[client], kind="stable"):
        if alone[j] > limits[j]:
            continue
        left = [i for i in members[j] if i not in chain.moved and i not in chain.homeless]
        came = [i for i, to in chain.moved.items() if to == j]
        there = np.array(sorted([*left, *came, client], key=rank.__getitem__))
        compute, upload = network.compute_seconds[there], network.upload_seconds[there, j]
        movable = np.isin(there, left)
        for leaving in _leaving(compute, upload, float(limits[j]), movable, pairs=not others):
            ejected = (int(i) for i in there[list(leaving)])
            yield _Chain({**chain.moved, client: int(j)}, (*others, *ejected))


def _leaving(compute: Floats, upload: Floats, limit: float, movable: Mask, pairs: bool) -> Iterator[tuple[int, ...]]:
    """Yield sets of clients of a cluster (none, one or two) that can leave so that the others keep the limit."""
    last = compute + np.cumsum(upload[::-1])[::-1]  # end of the last upload if this client's were the first
    if last.max() <= limit:
        yield ()
        return
    clients = np.arange(len(last))
    saved = upload[:, None] * (clients[:, None] > clients)  # [client that leaves, client whose `last` falls]
    saved[clients, clients] = np.inf
    enough = np.zeros(len(last), bool)
    for leaver in clients[movable]:
        enough[leaver] = (last - saved[leaver]).max() <= limit
        if enough[leaver]:
            yield (int(leaver),)
    if pairs:
        longest = [k for k in np.argsort(-upload, kind="stable") if movable[k] and not enough[k]][:PAIRED]
        for first, second in combinations(longest, 2):
            if (last - saved[first] - saved[second]).max() <= limit:
                yield int(first), int(second)
