"""Draws and cuts that partitions share."""

import numpy as np
import numpy.typing as npt

from atoll.support.arrays import Floats
from atoll.support.errors import InputError

Indices = npt.NDArray[np.integer]


def cuts_of(total: int, shares: Floats) -> Indices:
    """Return where to cut `total` samples into parts proportional to `shares`, each of at least one sample."""
    spare = np.rint(np.cumsum(shares) / shares.sum() * (total - len(shares))).astype(np.int64)
    return np.asarray(spare + np.arange(1, len(shares) + 1))[:-1]


def permutation(pool: int, rng: np.random.Generator) -> Indices:
    """Return the indices of a pool in random order."""
    return rng.permutation(np.arange(pool, dtype=np.int32))


def require_enough(pool: int, clients: int, each: int) -> None:
    """Refuse more clients than the pool has samples for."""
    if clients * each > pool:
        told = f"data.clients = {clients}: with {each} or more samples each they need {clients * each}"
        raise InputError(f"{told}, and the pool has {pool}")
