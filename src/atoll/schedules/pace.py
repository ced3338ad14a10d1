"""Clients' seconds, and how their speeds change over time, as multiples of their own speed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

Changes = Sequence[tuple[Floats, Floats]]
"""For each client the virtual seconds of changes, ascending, and the values from then on."""


def read_seconds(name: str, given: Any) -> Floats:
    """Return clients' seconds as an array; refuse anything else."""
    try:
        seconds = np.asarray(given, float)
    except (TypeError, ValueError) as error:
        raise InputError(f"clock: {name} must be numbers, one per client, it is {type(given).__name__!r}") from error
    if seconds.ndim != 1 or not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise InputError(f"clock: {name} must be flat and finite, one number of at least 0 per client")
    return seconds


@dataclass(frozen=True, eq=False)
class Pace:
    """Speeds that change over time. Work is finished at the speed at which it began.

    Attributes:
        compute: speed of computing; 1 before the first change.
        rate: the same for sending and receiving.
    """

    compute: Changes
    rate: Changes

    def times(self, clients: Ids, seconds: float | Floats) -> tuple[Floats, Floats]:
        """Return the factors by which computing and sending take longer, begun then (one time, or each's), [clients].

        >>> half = [(np.array([10.0]), np.array([0.5]))]
        >>> Pace(half, half).times(np.array([0]), 9.0), Pace(half, half).times(np.array([0]), 10.0)
        ((array([1.]), array([1.])), (array([2.]), array([2.])))
        """
        return 1 / _at(self.compute, clients, seconds), 1 / _at(self.rate, clients, seconds)


def _at(changes: Changes, clients: Ids, seconds: float | Floats) -> Floats:
    def in_force(client: int, second: float) -> float:
        when, values = changes[client]
        place = int(np.searchsorted(when, second, side="right"))
        return float(values[place - 1]) if place else 1.0

    return np.array([*map(in_force, clients.tolist(), np.broadcast_to(seconds, clients.shape).tolist())], float)
