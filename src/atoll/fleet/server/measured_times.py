"""How long clients take, measured while they work."""

from threading import Lock
from typing import Any

import numpy as np

from atoll.support.arrays import Floats, Ids

_KEPT = 0.8  # of the weight of earlier replies, with each new one: five count, so that who becomes slow is seen soon


class MeasuredTimes:
    """Means over the good replies of each client, of which later ones weigh more; safe to use from several threads.

    A reply's weight is 0.8 to the power of how many came after it. A client's own clock is asked for durations only,
    and believed up to the time that passed here.
    """

    def __init__(self, clients: int) -> None:
        """Begin without measurements of so many clients."""
        self._lock = Lock()
        self._replies = np.zeros(clients, np.int64)
        self._weights = np.zeros(clients)
        self._computing = np.zeros(clients)
        self._samples = np.zeros(clients)
        self._sending = np.zeros(clients)

    def add(self, client: int, passed: int, seconds: float, round_trip: float) -> None:
        """Count a training.

        Args:
            client: who trained.
            passed: samples in all its batches.
            seconds: that the node says it trained.
            round_trip: seconds from asking to the reply.
        """
        computing = min(seconds, round_trip)
        with self._lock:
            self._replies[client] += 1
            for sums, new in (
                (self._weights, 1.0),
                (self._computing, computing),
                (self._samples, passed),
                (self._sending, round_trip - computing),
            ):
                sums[client] = _KEPT * sums[client] + new

    def remember(self, seconds_per_sample: Floats, compute_seconds: Floats, upload_seconds: Floats) -> None:
        """Count what these properties were in an earlier part of the run as one reply a client; NaN: not known."""
        known = ~np.isnan(compute_seconds)
        with self._lock:
            self._replies[known] += 1
            self._weights[known] += 1
            self._computing[known] += compute_seconds[known]
            self._sending[known] += upload_seconds[known]
            quick = known & (compute_seconds == 0)
            self._samples[known & ~quick] += compute_seconds[known & ~quick] / seconds_per_sample[known & ~quick]
            self._samples[quick] += 1

    @property
    def replies(self) -> Ids:
        """How many trainings were counted, [clients]."""
        with self._lock:
            return self._replies.copy()

    @property
    def seconds_per_sample(self) -> Floats:
        """Seconds of training on one sample, zeta_i, [clients]; NaN where nothing is known."""
        with self._lock:
            return _divide(self._computing, self._samples)

    @property
    def compute_seconds(self) -> Floats:
        """Seconds of one local training, L^c_i, [clients]; NaN where nothing is known."""
        with self._lock:
            return _divide(self._computing, self._weights)

    @property
    def upload_seconds(self) -> Floats:
        """Seconds of a round trip besides training: download, waiting, upload; [clients], NaN where unknown."""
        with self._lock:
            return _divide(self._sending, self._weights)

    def as_dict(self) -> dict[str, list[Any]]:
        """Return what was measured by name, one value a client, as ``measured.json`` has it; None where unknown."""
        return {
            "replies": self.replies.tolist(),
            "seconds_per_sample": _cells(self.seconds_per_sample),
            "compute_seconds": _cells(self.compute_seconds),
            "upload_seconds": _cells(self.upload_seconds),
        }


def _cells(seconds: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in seconds]


def _divide(sums: Floats, counts: Floats) -> Floats:
    return np.asarray(np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0))
