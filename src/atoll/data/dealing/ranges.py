"""Clients' indices as ranges of one flat array, which may be drawn when they are asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dealing.class_counts import Indices, by_class
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.seeds import generator

_BLOCK = 16  # clients drawn together: one costs little more than alone, and all of them a fraction


@dataclass(frozen=True, eq=False)
class DrawnIndices:
    """Indices of clients that hold equally many samples, drawn with replacement whenever they are asked for.

    Attributes:
        labels: class of each sample of the pool.
        counts: samples of each class that a client holds, by kind of client, [kinds, classes]; all sum to the same.
        clients: number of clients, of which client k is of kind ``k * kinds // clients``.
        seed: what the draws are derived from.
    """

    labels: Indices
    counts: Ids
    clients: int
    seed: int

    @cached_property
    def samples(self) -> int:
        """Samples of each client."""
        return int(self.counts[0].sum())

    @cached_property
    def _pool(self) -> tuple[Indices, Ids, Ids]:
        return by_class(self.labels, self.counts)

    def __len__(self) -> int:
        return self.clients * self.samples

    def __getitem__(self, where: slice | Ids) -> npt.NDArray[np.int32]:
        size = _BLOCK * self.samples
        if isinstance(where, slice):
            low, high, _ = where.indices(len(self))
            first = low // size
            blocks = [self._draw(block) for block in range(first, -(-high // size))]
            return np.concatenate([*blocks, np.empty(0, np.int32)])[low - first * size : high - first * size]
        numbers, rows = np.unique(where // size, return_inverse=True)
        drawn = np.array([self._draw(int(number)) for number in numbers], np.int32).reshape(-1, size)
        return np.asarray(drawn[rows, where % size])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[:].astype(dtype or np.int32, copy=False)

    def _draw(self, block: int) -> npt.NDArray[np.int32]:
        order, begin, size = self._pool
        kinds = (np.arange(_BLOCK) + block * _BLOCK) * len(self.counts) // self.clients
        counts = self.counts[np.minimum(kinds, len(self.counts) - 1)]
        classes = np.repeat(np.tile(np.arange(counts.shape[1]), _BLOCK), counts.ravel())
        rng = generator(self.seed, "indices", block)
        return np.asarray(order[begin[classes] + rng.integers(size[classes])], np.int32)


@dataclass(frozen=True, eq=False)
class Ranges:
    """A partition without an object per client: client k holds ``indices[offsets[k]:offsets[k + 1]]``."""

    indices: Indices | DrawnIndices
    offsets: Ids

    @property
    def sizes(self) -> Ids:
        """Samples of each client, [clients]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Indices:
        """Return a client's indices (a view if they are held)."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def first(self, clients: int) -> "Ranges":
        """Return the partition among the first clients alone."""
        return Ranges(self.indices[: self.offsets[clients]], self.offsets[: clients + 1])

    def __iter__(self) -> Iterator[Indices]:
        return map(self.__getitem__, range(len(self)))


Parts = Indices | Sequence[Indices] | Ranges
"""An array [clients, samples] of indices into the pool, one index array per client, or ranges of one."""


def within(indices: Any, pool: int) -> npt.NDArray[np.int32]:
    """Return positions in the pool."""
    array = np.asarray(indices)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (len(array) and (array.min() < 0 or array.max() >= pool)):
        found = f"; they are from {array.min()} to {array.max()}" if array.size and array.dtype.kind in "iu" else ""
        raise InputError(f"data.partition: indices must be integers from 0 to {pool - 1}{found}")
    return array.astype(np.int32, copy=False)
