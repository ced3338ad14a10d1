"""Completion times of all clusters with one more client, without iterating over the clients that they have."""

from typing import Any

import numpy as np

from atoll.network.completion import cluster_seconds, download_seconds
from atoll.network.network import Network
from atoll.support.arrays import Floats, Ids

_AFTER_ALL = np.iinfo(np.int64).max
_LEAST, _MOST = 32, 1024  # clients for whom a block has room


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

    Each cluster has blocks of one pool, with room for some consecutive clients each, so that placing one takes hardly
    longer in a large cluster. The three numbers are those within a block; what the cluster's other blocks add is held
    once a block. A block's keys are its number times (clients + 1) plus its clients' places in the order of all. Blocks
    are numbered in their order in the pool, so the keys of the whole pool ascend and one search finds a client's place
    in a block of every cluster.
    """

    def __init__(self, network: Network) -> None:
        clients, aggregators = network.clients, network.aggregators
        self._network = network
        order = np.argsort(network.compute_seconds, kind="stable")
        self._compute_in_order = network.compute_seconds[order]
        self._place_of = np.empty(clients, np.int64)
        self._place_of[order] = np.arange(clients)
        self._stride = clients + 1
        self._every = np.arange(aggregators) * self._stride
        # By cluster, and in the order of uploads: where blocks begin among the places of all clusters; their numbers.
        self._begins, self._numbers = self._every.copy(), np.arange(aggregators)
        # Rows, of each of these: uploads in later blocks, longest sum in these, longest sum in earlier blocks.
        self._others = np.zeros((3, aggregators))
        self._room = min(max(2 + clients * 3 // (2 * aggregators), _LEAST), _MOST)
        self._counts = [0] * aggregators
        self._keys = np.repeat(self._every + clients, self._room)
        # Rows: uploads, longest sum before, uploads after, longest sum after.
        self._pool = np.zeros((4, len(self._keys)))
        self._down = np.zeros(aggregators)

    def candidates(self, client: int) -> Floats:
        """Return each cluster's completion if the client joined it, seconds, [aggregators]."""
        place = self._place_of[client]
        block = self._block_at(self._every + place)
        at = np.searchsorted(self._keys, self._numbers[block] * self._stride + place)
        compute, upload = self._network.compute_seconds[client], self._network.upload_seconds[client]
        _, longest_before, uploads_after, longest_after = self._pool
        uploads_later, longest_later, longest_earlier = self._others[:, block]
        own = uploads_after[at] + compute
        np.maximum(own, longest_before[at], out=own)
        own += uploads_later
        np.maximum(own, longest_earlier, out=own)
        own += upload
        np.maximum(own, longest_after[at] + uploads_later, out=own)
        return np.asarray(np.maximum(own, longest_later, out=own))

    def downloads(self, client: int) -> Floats:
        """Return the seconds until each cluster has its aggregator's model if the client joined it, [aggregators]."""
        assert self._network.download_seconds is not None
        return np.asarray(np.maximum(self._down, self._network.download_seconds[client]))

    def place(self, client: int, aggregator: int) -> None:
        """Add the client to a cluster."""
        if self._network.download_seconds is not None:
            self._down[aggregator] = max(self._down[aggregator], self._network.download_seconds[client, aggregator])
        place = self._place_of[client]
        block = int(self._block_at(self._every[aggregator] + place))
        number = int(self._numbers[block])
        key = number * self._stride + place
        at, end = int(self._keys.searchsorted(key)), number * self._room + self._counts[number]
        self._keys[at + 1 : end + 1] = self._keys[at:end]
        uploads = self._pool[0]
        uploads[at + 1 : end + 1] = uploads[at:end]
        self._keys[at] = key
        uploads[at] = self._network.upload_seconds[client, aggregator]
        self._counts[number] += 1
        self._sum_up(number)
        if self._counts[number] + 1 == self._room:
            self._split(block)
        self._join(aggregator)

    def _block_at(self, places: Any) -> Any:
        return self._begins.searchsorted(places, side="right") - 1

    def _sum_up(self, number: int) -> None:
        start = number * self._room
        end = start + self._counts[number]
        compute = self._compute_in_order[self._keys[start:end] - number * self._stride]
        uploads, longest_before, uploads_after, longest_after = self._pool[:, start : end + 1]
        uploads_after[-1] = longest_after[-1] = longest_before[0] = 0
        uploads_after[:-1] = uploads[-2::-1].cumsum()[::-1]
        sums = compute + uploads_after[:-1]
        np.maximum.accumulate(sums, out=longest_before[1:])
        longest_after[:-1] = np.maximum.accumulate(sums[::-1])[::-1]

    def _join(self, aggregator: int) -> None:
        """Sum up what the cluster's blocks add to each other."""
        low, high = self._begins.searchsorted([self._every[aggregator], self._every[aggregator] + self._stride])
        first = self._numbers[low:high] * self._room
        uploads, longest = self._pool[2, first], self._pool[3, first]
        uploads_later, longest_later, longest_earlier = self._others[:, low:high]
        uploads_later[:-1] = uploads[:0:-1].cumsum()[::-1]
        longest += uploads_later
        longest_later[:-1] = np.maximum.accumulate(longest[:0:-1])[::-1]
        np.maximum.accumulate(longest[:-1], out=longest_earlier[1:])

    def _split(self, block: int) -> None:
        """Move the later half of a block's clients to a new one, at the end of the pool."""
        old, number = int(self._numbers[block]), len(self._counts)
        half, low, start = self._room // 2, old * self._room, number * self._room
        if start == len(self._keys):
            self._keys = np.concatenate([self._keys, np.full(start, _AFTER_ALL)])
            self._pool = np.concatenate([self._pool, np.zeros((4, start))], axis=1)
        moved = slice(low + half, low + self._counts[old])
        places, count = self._keys[moved] - old * self._stride, self._counts[old] - half
        self._keys[moved] = (old + 1) * self._stride - 1
        self._keys[start : start + self._room] = (number + 1) * self._stride - 1
        self._keys[start : start + count] = places + number * self._stride
        self._pool[0, start : start + count] = self._pool[0, moved]
        self._counts[old] = half
        self._counts.append(count)
        begin = self._begins[block] // self._stride * self._stride + places[0]
        self._begins = np.insert(self._begins, block + 1, begin)
        self._numbers = np.insert(self._numbers, block + 1, number)
        self._others = np.insert(self._others, block + 1, 0, axis=1)
        self._sum_up(old)
        self._sum_up(number)
