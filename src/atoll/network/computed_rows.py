"""Seconds of all pairs of a client and an aggregator that are computed when asked for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.support.arrays import Floats, Ids

_BLOCK = 1 << 21  # entries computed at a time where all are needed


@dataclass(eq=False)
class ComputedRows:
    """A matrix [clients, aggregators] that is not held: it has the values and some of the indexing of an array.

    Attributes:
        shape: clients and aggregators.
        compute: returns the entries of some clients and some aggregators, [clients, aggregators] of these.
    """

    shape: tuple[int, int]
    compute: Callable[[Ids, Ids], Floats]

    def __post_init__(self) -> None:
        self._every = np.arange(self.shape[1])
        self._last: tuple[int, Floats] = -1, np.empty(0)

    def __getitem__(self, where: Any) -> Any:
        """Return what an array would for a client, clients, or a pair of these and an aggregator, or one for each."""
        of_clients, columns = where if isinstance(where, tuple) else (where, None)
        clients = np.arange(self.shape[0])[of_clients] if isinstance(of_clients, slice) else np.asarray(of_clients)
        if clients.ndim == 0:
            return self._row(int(clients)) if columns is None else self._row(int(clients))[columns]
        if columns is None:
            return self.compute(np.flatnonzero(clients) if clients.dtype == bool else clients, self._every)
        found, columns = np.empty(len(clients)), np.broadcast_to(columns, clients.shape)
        for column in np.unique(columns):
            own = np.flatnonzero(columns == column)
            found[own] = self.compute(clients[own], np.array([column]))[:, 0]
        return found

    def min(self, axis: int) -> Floats:
        """Return the least of each row; `axis` is 1."""
        return np.concatenate([rows.min(axis) for rows in self.blocks()])

    def argmin(self, axis: int) -> Ids:
        """Return the column of the least of each row; `axis` is 1."""
        return np.concatenate([rows.argmin(axis) for rows in self.blocks()])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        found, done = np.empty(self.shape), 0
        for rows in self.blocks():
            found[done : (done := done + len(rows))] = rows
        return found

    def blocks(self) -> Iterator[Floats]:
        """Yield the rows of some consecutive clients at a time."""
        size = max(1, _BLOCK // max(1, self.shape[1]))
        clients = np.arange(self.shape[0])
        return (self.compute(clients[low : low + size], self._every) for low in range(0, len(clients), size))

    def _row(self, client: int) -> Floats:
        """Return a client's row; the last one is kept, since a greedy pass asks for it several times."""
        if self._last[0] != client:
            self._last = client, self.compute(np.array([client]), self._every)[0]
        return self._last[1]
