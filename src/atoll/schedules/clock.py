"""How long clients' work takes: their own seconds, how their speeds change over time, and events that wait for them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        """Return the factors by which computing and sending take longer, begun then (one time or each's), [clients]."""
        return 1 / _at(self.compute, clients, seconds), 1 / _at(self.rate, clients, seconds)


def _at(changes: Changes, clients: Ids, seconds: float | Floats) -> Floats:
    def in_force(client: int, second: float) -> float:
        when, values = changes[client]
        place = int(np.searchsorted(when, second, side="right"))
        return float(values[place - 1]) if place else 1.0

    return np.array([*map(in_force, clients.tolist(), np.broadcast_to(seconds, clients.shape).tolist())], float)


def missed(deadline_seconds: float, least_seconds: float) -> str:
    """Return the message that a deadline excludes every client; it has the fastest client's seconds, rounded up."""
    enough = next(text for digits in range(4, 18) if float(text := f"{least_seconds:.{digits}g}") >= least_seconds)
    told = f"faults.deadline_seconds = {deadline_seconds:g}: no client of any cohort is done by then"
    return f"{told}; the fastest needs {enough} s"


@dataclass(frozen=True, eq=False)
class Clock:
    """How long each client's work takes; clients work in parallel, downloads are free.

    Attributes:
        compute_seconds: one local training, [clients].
        upload_seconds: one upload of the model, [clients].
        deadline_seconds: the longest that an event waits for its cohort.
        pace: how these seconds change over time; None: they do not.
    """

    compute_seconds: Floats
    upload_seconds: Floats
    deadline_seconds: float = math.inf
    pace: Pace | None = None

    def __post_init__(self) -> None:
        """Refuse seconds that are negative, or not one per client."""
        for name in ("compute_seconds", "upload_seconds"):
            object.__setattr__(self, name, read_seconds(name, getattr(self, name)))
        if (computing := len(self.compute_seconds)) != (uploading := len(self.upload_seconds)):
            raise InputError(f"clock: upload_seconds is of {uploading} clients, compute_seconds of {computing}")
        if not self.deadline_seconds > 0:
            raise InputError(f"clock: deadline_seconds = {self.deadline_seconds}: must be greater than 0")

    def __repr__(self) -> str:
        longest = float((self.compute_seconds + self.upload_seconds).max(initial=0))
        return f"Clock({len(self.compute_seconds):,} clients, at most {longest:g} s each)"

    def slower(self, times: float) -> "Clock":
        """Return the clock of clients that compute so many times as long."""
        return replace(self, compute_seconds=times * self.compute_seconds)

    def seconds_of(self, cohort: Ids, began: float | Floats = 0.0) -> Floats:
        """Return the seconds until each of the cohort has uploaded, if it begins at (its) virtual time, [cohort]."""
        if self.pace is None:
            return np.asarray(self.compute_seconds[cohort] + self.upload_seconds[cohort])
        computing, sending = self.pace.times(cohort, began)
        return np.asarray(computing * self.compute_seconds[cohort] + sending * self.upload_seconds[cohort])

    def event_seconds(self, cohort: Ids, began: float = 0.0) -> float:
        """Return the seconds until the slowest of the cohort has uploaded, at most the deadline."""
        return min(self.deadline_seconds, float(self.seconds_of(cohort, began).max()))
