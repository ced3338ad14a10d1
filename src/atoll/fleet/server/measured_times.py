"""Measured times of clients."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from atoll.support.arrays import Floats, Ids

SECONDS = ("seconds_per_sample", "compute_seconds", "upload_seconds")
_KEPT = 0.8  # decay of earlier replies' weight: about five count, so a client that slows down is noticed soon


class MeasuredTimes:
    """Weighted means over each client's good replies, with more weight on recent ones; thread-safe.

    A reply with n later ones has weight 0.8^n. Only durations are taken from a client's clock, capped at the time that
    passed here.
    """

    def __init__(self, clients: int) -> None:
        self._lock = Lock()
        self._replies: Ids = np.zeros(clients, np.int64)
        self._weights: Floats = np.zeros(clients)
        self._computing: Floats = np.zeros(clients)
        self._samples: Floats = np.zeros(clients)
        self._sending: Floats = np.zeros(clients)

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

    def restore(self, told: Mapping[str, Sequence[float | None]]) -> None:
        """Go on from what an earlier part of the run has measured, as `as_dict` returned it."""
        form = self._replies.shape
        pace, computing, sending = (np.array(told[name], np.float64).reshape(form) for name in SECONDS)
        replies = np.array(told["replies"], np.int64).reshape(form)
        weights = np.array((1 - _KEPT**replies) / (1 - _KEPT), np.float64)
        with self._lock:
            self._replies, self._weights = replies, weights
            self._computing, self._sending = (np.nan_to_num(each) * weights for each in (computing, sending))
            self._samples = np.where(pace > 0, _divide(self._computing, pace), weights)  # unknown if they took no time

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
        return {"replies": self.replies.tolist(), **{name: cells_of(getattr(self, name)) for name in SECONDS}}


def cells_of(seconds: Floats) -> list[float | None]:
    """Return seconds as they are written, None for NaN."""
    return [None if np.isnan(value) else float(value) for value in seconds]


def _divide(sums: Floats, counts: Floats) -> Floats:
    return np.asarray(np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0))
