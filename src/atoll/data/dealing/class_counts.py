"""Exact class counts for clients, samples drawn in these counts, and what else partitions share."""

import numpy as np
import numpy.typing as npt

from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

Indices = npt.NDArray[np.integer]
_CHUNK = 100_000  # clients handled at a time, which bounds the scratch memory of a million clients


def major_shares(major: Indices, classes: int, rho: float) -> Floats:
    """Return [len(major), classes] shares: `rho` for the major class, the rest spread evenly."""
    shares = np.full((len(major), classes), (1 - rho) / max(classes - 1, 1))
    shares[np.arange(len(major)), major] = rho
    return shares


def exact_counts(shares: Floats, total: int, first: Indices) -> Ids:
    """Round ``shares * total`` [n, classes] to integers that sum to `total` in every row, by largest remainder.

    Ties are broken in cyclic order from the class after ``first[row]``.
    """
    counts = np.empty(shares.shape, np.int64)
    for low in range(0, len(shares), _CHUNK):
        counts[low : low + _CHUNK] = _round_rows(shares[low : low + _CHUNK], total, first[low : low + _CHUNK])
    return counts


def _round_rows(shares: Floats, total: int, first: Indices) -> Ids:
    rows, classes = shares.shape
    exact = shares * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    remainder = np.round(exact - counts, 9)
    turn = (np.arange(classes)[None, :] - first[:, None] - 1) % classes
    ranked = np.lexsort((turn, -remainder), axis=1)
    rank = np.empty_like(ranked)
    np.put_along_axis(rank, ranked, np.broadcast_to(np.arange(classes), (rows, classes)), axis=1)
    return np.asarray(counts + (rank < (total - counts.sum(axis=1))[:, None]))


def by_class(labels: Indices, counts: Ids) -> tuple[Indices, Ids, Ids]:
    """Return the pool ordered by class, and where each class begins and its size; refuse to draw from an empty one."""
    order = np.argsort(labels, kind="stable").astype(np.int32)
    size = np.bincount(labels, minlength=counts.shape[1])[: counts.shape[1]]
    if (missing := np.flatnonzero((size == 0) & (counts.sum(axis=0) > 0))).size:
        raise InputError(f"data.partition: the data set has no sample of class {missing[0]}")
    return order, np.cumsum(size) - size, size


def draw_counts(labels: Indices, counts: Ids, rng: np.random.Generator) -> Indices:
    """Draw ``counts[k, c]`` samples of class c for client k, with replacement; every row has the same sum."""
    classes = counts.shape[1]
    order, begin, size = by_class(labels, counts)
    parts = np.empty((len(counts), int(counts[0].sum())), np.int32)
    for low in range(0, len(counts), _CHUNK):
        block = counts[low : low + _CHUNK]
        drawn = np.repeat(np.tile(np.arange(classes, dtype=np.min_scalar_type(classes)), len(block)), block.ravel())
        picked = begin[drawn] + rng.integers(size[drawn])
        parts[low : low + _CHUNK] = order[picked].reshape(len(block), -1)
    return parts


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
