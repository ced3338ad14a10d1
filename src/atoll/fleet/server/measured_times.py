"""Measured times of clients."""

from threading import Lock
from typing import Any

import numpy as np

from atoll.support.arrays import Floats, Ids

_KEPT = 0.8  # decay of earlier replies' weight: about five count, so a client that slows down is noticed soon


class MeasuredTimes:
    """Weighted means over each client's good replies, with more weight on recent ones; thread-safe.

    A reply with n later ones has weight 0.8^n. Only durations are taken from a client's clock, capped at the time that
    passed here.
    """

    def __init__(self, clients: int) -> None:
        self._lock = Lock()
        self._replies = np.zeros(clients, np.int64)
        self._weights = np.zeros(clients)
        self._computing = np.zeros(clients)
        self._samples = np.zeros(clients)
        self._sending = np.zeros(clients)

    def add(self, client: int, passed: int, seconds: float, round_trip: float) -> None:
        """Add a training: the samples in all its batches, its seconds at the node, and those from request to reply."""
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
        """Restore these properties from an earlier part of the run, as one reply per client; NaN: unknown."""
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
        """Number of trainings, [clients]."""
        with self._lock:
            return self._replies.copy()

    @property
    def seconds_per_sample(self) -> Floats:
        """Seconds of training on one sample, zeta_i, [clients]; NaN if unknown."""
        with self._lock:
            return _divide(self._computing, self._samples)

    @property
    def compute_seconds(self) -> Floats:
        """Seconds of one local training, L^c_i, [clients]; NaN if unknown."""
        with self._lock:
            return _divide(self._computing, self._weights)

    @property
    def upload_seconds(self) -> Floats:
        """Seconds of a round trip besides training: download, waiting, upload; [clients], NaN if unknown."""
        with self._lock:
            return _divide(self._sending, self._weights)

    def as_dict(self) -> dict[str, list[Any]]:
        """Return the measurements by name, one value per client, as in ``measured.json``; None if unknown."""
        return {
            "replies": self.replies.tolist(),
            "seconds_per_sample": cells_of(self.seconds_per_sample),
            "compute_seconds": cells_of(self.compute_seconds),
            "upload_seconds": cells_of(self.upload_seconds),
        }


def cells_of(seconds: Floats) -> list[float | None]:
    """Return seconds as they are written, None for NaN."""
    return [None if np.isnan(value) else float(value) for value in seconds]


def _divide(sums: Floats, counts: Floats) -> Floats:
    return np.asarray(np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0))
