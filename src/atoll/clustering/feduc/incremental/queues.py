"""Completion times of all clusters with one more client, without iterating over the clients that they have."""

import numpy as np

from atoll.network.completion import cluster_seconds, download_seconds
from atoll.network.network import Network
from atoll.support.arrays import Floats, Ids

_AFTER_ALL = np.iinfo(np.int64).max


class SideBySide:
    """Every cluster's clients where they send side by side; each cluster is computed again."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._members: list[list[int]] = [[] for _ in range(network.aggregators)]

    def candidates(self, client: int) -> Floats:
        """Return each cluster's completion if the client joined it, seconds, [aggregators]."""
        return np.array([cluster_seconds(self._network, self._with(client, j), j) for j in range(len(self._members))])

    def downloads(self, client: int) -> Floats:
        """Return the seconds until each cluster has its aggregator's model if the client joined it, [aggregators]."""
        return np.array([download_seconds(self._network, self._with(client, j), j) for j in range(len(self._members))])

    def place(self, client: int, aggregator: int) -> None:
        """Add the client to a cluster."""
        self._members[aggregator].append(client)

    def _with(self, client: int, aggregator: int) -> Ids:
        return np.array(sorted({*self._members[aggregator], client}))


class Queues:
    """Every cluster's clients in the order in which they upload, with the sums that an insertion needs.

    By eq. 50 a cluster completes after the longest of ``L^c_i + the uploads of i and all clients after it``. A new
    client adds its upload to the sums of the clients before it and leaves those after it unchanged, so three
    numbers at its place in the order suffice: the longest sum before, the uploads after, the longest sum after.

    Each cluster has a block of one pool, with room to grow. A block's keys are its number times (clients + 1) plus its
    clients' places in the order of all. Blocks are numbered in their order in the pool, so the keys of the whole pool
    ascend and one search finds a client's place in every cluster.
    """

    def __init__(self, network: Network) -> None:
        clients, aggregators = network.clients, network.aggregators
        self._network = network
        order = np.argsort(network.compute_seconds, kind="stable")
        self._compute_in_order = network.compute_seconds[order]
        self._place_of = np.empty(clients, np.int64)
        self._place_of[order] = np.arange(clients)
        self._stride = clients + 1
        self._counts = np.zeros(aggregators, np.int64)
        self._room = np.full(aggregators, 2 + clients * 3 // (2 * aggregators))
        self._starts = np.concatenate([[0], np.cumsum(self._room)[:-1]])
        self._base = np.arange(aggregators) * self._stride
        self._blocks = aggregators
        self._used = int(self._room.sum())
        self._keys = np.repeat(self._base + clients, self._room)
        # Rows: uploads, longest sum before, uploads after, longest sum after.
        self._pool = np.zeros((4, self._used))
        self._down = np.zeros(aggregators)

    def candidates(self, client: int) -> Floats:
        """Return each cluster's completion if the client joined it, seconds, [aggregators]."""
        at = np.searchsorted(self._keys, self._base + self._place_of[client])
        compute, upload = self._network.compute_seconds[client], self._network.upload_seconds[client]
        _, longest_before, uploads_after, longest_after = self._pool
        own = uploads_after[at] + compute
        np.maximum(own, longest_before[at], out=own)
        own += upload
        return np.asarray(np.maximum(own, longest_after[at], out=own))

    def downloads(self, client: int) -> Floats:
        """Return the seconds until each cluster has its aggregator's model if the client joined it, [aggregators]."""
        assert self._network.download_seconds is not None
        return np.asarray(np.maximum(self._down, self._network.download_seconds[client]))

    def place(self, client: int, aggregator: int) -> None:
        """Add the client to a cluster."""
        if self._network.download_seconds is not None:
            self._down[aggregator] = max(self._down[aggregator], self._network.download_seconds[client, aggregator])
        if self._counts[aggregator] + 1 == self._room[aggregator]:
            self._enlarge(aggregator)
        key = self._base[aggregator] + self._place_of[client]
        start, count = int(self._starts[aggregator]), int(self._counts[aggregator])
        at, end = int(np.searchsorted(self._keys, key)), start + count
        self._keys[at + 1 : end + 1] = self._keys[at:end]
        uploads = self._pool[0]
        uploads[at + 1 : end + 1] = uploads[at:end]
        self._keys[at] = key
        uploads[at] = self._network.upload_seconds[client, aggregator]
        self._counts[aggregator] = count + 1
        self._sum_up(aggregator)

    def _sum_up(self, aggregator: int) -> None:
        start = int(self._starts[aggregator])
        end = start + int(self._counts[aggregator])
        compute = self._compute_in_order[self._keys[start:end] - self._base[aggregator]]
        uploads, longest_before, uploads_after, longest_after = self._pool[:, start : end + 1]
        uploads_after[-1] = longest_after[-1] = longest_before[0] = 0
        uploads_after[:-1] = uploads[-2::-1].cumsum()[::-1]
        sums = compute + uploads_after[:-1]
        np.maximum.accumulate(sums, out=longest_before[1:])
        longest_after[:-1] = np.maximum.accumulate(sums[::-1])[::-1]

    def _enlarge(self, aggregator: int) -> None:
        """Move a cluster to a new block at the end of the pool, twice as large."""
        old, count = int(self._starts[aggregator]), int(self._counts[aggregator])
        start, room = self._used, 2 * int(self._room[aggregator])
        if start + room > len(self._keys):
            more = max(room, len(self._keys))
            self._keys = np.concatenate([self._keys, np.full(more, _AFTER_ALL)])
            self._pool = np.concatenate([self._pool, np.zeros((4, more))], axis=1)
        base = self._blocks * self._stride
        self._keys[start : start + room] = base + self._stride - 1
        self._keys[start : start + count] = self._keys[old : old + count] - self._base[aggregator] + base
        self._pool[0, start : start + count] = self._pool[0, old : old + count]
        self._starts[aggregator], self._room[aggregator], self._base[aggregator] = start, room, base
        self._blocks, self._used = self._blocks + 1, start + room
        self._sum_up(aggregator)
