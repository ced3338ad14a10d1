"""How fast clients compute and send as time goes by, as multiples of what they do by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.support.arrays import Floats, Ids

Changes = Sequence[tuple[Floats, Floats]]
"""Of each client the virtual seconds at which something changes, ascending, and what holds from then on."""


@dataclass(frozen=True, eq=False)
class Pace:
    """Speeds that change. What a client begins, it finishes at the speed at which it began.

    Attributes:
        compute: of computing, more being faster; 1 before the first change.
        rate: the same of sending and receiving.
    """

    compute: Changes
    rate: Changes

    def times(self, clients: Ids, seconds: float) -> tuple[Floats, Floats]:
        """Return how many times as long these clients compute, and send, if they begin then, [clients] each.

        >>> half = [(np.array([10.0]), np.array([0.5]))]
        >>> Pace(half, half).times(np.array([0]), 9.0), Pace(half, half).times(np.array([0]), 10.0)
        ((array([1.]), array([1.])), (array([2.]), array([2.])))
        """
        return 1 / _at(self.compute, clients, seconds), 1 / _at(self.rate, clients, seconds)


def _at(changes: Changes, clients: Ids, seconds: float) -> Floats:
    def in_force(when: Floats, values: Floats) -> float:
        place = int(np.searchsorted(when, seconds, side="right"))
        return float(values[place - 1]) if place else 1.0

    return np.array([in_force(*changes[client]) for client in clients.tolist()], float)
