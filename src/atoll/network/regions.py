"""Nodes that average what they pass on: each link on the way to the server carries one model, once all below are in."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from atoll.network.sharing import finish_seconds
from atoll.support.arrays import Floats, Ids, Mask


@dataclass(frozen=True, eq=False)
class Regions:
    """The ways to the server as a tree, whose nodes are the aggregators, in their order, and then the others.

    A weighted mean of weighted means is the mean of all, so that only seconds and prices differ from passing on.

    Attributes:
        above: the next node on the way to the server, -1 where that is the server, [nodes].
        upwards: all nodes, each before the one above it, [nodes].
        up_seconds: of a model to the node above, alone, [nodes].
        down_seconds: of a model back, alone; 0 where downloads are free, [nodes].
        prices: of a model up and one back, [nodes].
        pipe_up: seconds in which the pipe to the server, if there is one, has carried a model up.
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
        """Return when the server has the average that each aggregator's model is in, [aggregators].

        Args:
            ready: when each aggregator could send, which is returned for those that do not, [aggregators].
            sends: which of them send, [aggregators].
        """
        begins = np.full(len(self.above), -np.inf)
        begins[: len(ready)] = np.where(sends, ready, -np.inf)
        for node, above in self._links():
            begins[above] = max(begins[above], begins[node] + self.up_seconds[node])
        last = np.flatnonzero((self.above < 0) & np.isfinite(begins))
        ends = self._below(last, self._side_by_side(begins[last], self.up_seconds[last], self.pipe_up))
        return np.where(sends, ends[: len(ready)], ready)

    def returned(self) -> float:
        """Return the seconds until the server's model is everywhere."""
        last = np.flatnonzero(self.above < 0)
        first = self._side_by_side(np.zeros(len(last)), self.down_seconds[last], self.pipe_down)
        return float(self._below(last, first, self.down_seconds).max())

    def paid(self, sends: Mask) -> Floats:
        """Return what a merge costs each aggregator that sends: those below a link share its price, [aggregators]."""
        below = np.zeros((len(self.above), len(sends)))
        below[np.flatnonzero(sends), np.flatnonzero(sends)] = 1.0
        for node, above in self._links():
            below[above] += below[node]
        return np.asarray((self.prices / np.maximum(below.sum(axis=1), 1.0)) @ below)

    def _links(self) -> Iterator[tuple[int, int]]:
        """Yield each node that has another one above, and that one, upwards."""
        return ((node, self.above[node]) for node in self.upwards.tolist() if self.above[node] >= 0)

    def _below(self, last: Ids, values: Floats, more: Floats | None = None) -> Floats:
        """Return the values of the server's nearest nodes for all below, more at each link, [nodes]."""
        found = np.zeros(len(self.above))
        found[last] = values
        for node, above in reversed(list(self._links())):
            found[node] = found[above] + (0.0 if more is None else more[node])
        return found

    @staticmethod
    def _side_by_side(begins: Floats, alone: Floats, carries: float) -> Floats:
        return finish_seconds(begins, alone, np.ones((1, len(begins)), bool), np.array([carries]))
