"""Nodes that average: each link on the way to the server carries one model, once all models below have arrived."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from atoll.network.sharing import side_by_side
from atoll.support.arrays import Floats, Ids, Mask


@dataclass(frozen=True, eq=False)
class Regions:
    """The ways to the server as a tree; its nodes are the aggregators, in their order, then the others.

    A weighted mean of weighted means is the mean of all, so only seconds and prices differ from passing models on.

    Attributes:
        above: the next node on the way to the server, -1 for the server, [nodes].
        upwards: all nodes, each before the one above it, [nodes].
        up_seconds: of a model to the node above, alone, [nodes].
        down_seconds: of a model in return, alone; 0 where downloads are free, [nodes].
        prices: of a model up and one down, [nodes].
        pipe_up: seconds for a model to pass up the pipe shared by all ways to the server; 0 if there is none.
        pipe_down: the same down.
    """

    above: Ids
    upwards: Ids
    up_seconds: Floats
    down_seconds: Floats
    prices: Floats
    pipe_up: float
    pipe_down: float

    def received(self, ready: Floats, sends: Mask) -> Floats:
        """Return when the server has the average that includes each aggregator's model, [aggregators].

        `ready` says when each can send, and is returned for those that do not send.
        """
        begins = np.full(len(self.above), -np.inf)
        begins[: len(ready)] = np.where(sends, ready, -np.inf)
        for node, above in self._links():
            begins[above] = max(begins[above], begins[node] + self.up_seconds[node])
        last = np.flatnonzero((self.above < 0) & np.isfinite(begins))
        ends = self._below(last, side_by_side(begins[last], self.up_seconds[last], self.pipe_up))
        return np.where(sends, ends[: len(ready)], ready)

    def returned(self) -> float:
        """Return the seconds until the server's model has reached all nodes."""
        last = np.flatnonzero(self.above < 0)
        first = side_by_side(np.zeros(len(last)), self.down_seconds[last], self.pipe_down)
        return float(self._below(last, first, self.down_seconds).max())

    def paid(self, sends: Mask) -> Floats:
        """Return the price of a merge for each aggregator that sends, [aggregators]; those below a link share it."""
        below = np.zeros((len(self.above), len(sends)))
        below[np.flatnonzero(sends), np.flatnonzero(sends)] = 1.0
        for node, above in self._links():
            below[above] += below[node]
        return np.asarray((self.prices / np.maximum(below.sum(axis=1), 1.0)) @ below)

    def _links(self) -> Iterator[tuple[int, int]]:
        """Yield each node below another node, and that one, upwards."""
        return ((node, self.above[node]) for node in self.upwards.tolist() if self.above[node] >= 0)

    def _below(self, last: Ids, values: Floats, more: Floats | None = None) -> Floats:
        """Pass values of the nodes next to the server on to all below, adding `more` at each link, [nodes]."""
        found = np.zeros(len(self.above))
        found[last] = values
        for node, above in reversed(list(self._links())):
            found[node] = found[above] + (0.0 if more is None else more[node])
        return found
