"""Checks of what a user's functions return: partitions, clusterings and data sets."""

from typing import Any

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.data.array_inputs import kind_of
from atoll.data.dataset import Dataset
from atoll.data.dealing.draws import Parts
from atoll.support.errors import InputError


def read_parts(made: Any, name: str, setting: str = "data.partition") -> Parts:
    """Return a partition as an array [clients, samples] or a list with one index array per client.

    Raises:
        InputError: it is neither.
    """
    wanted = "must return an array [clients, samples] of indices, or a list with one array of indices per client"
    try:
        parts = made if isinstance(made, np.ndarray) else [np.asarray(part) for part in made]
    except (TypeError, ValueError) as error:
        raise InputError(f"{setting} = {name!r}: {wanted}; it returned {kind_of(made)}") from error
    if isinstance(parts, np.ndarray):
        if parts.ndim != 2 or not np.issubdtype(parts.dtype, np.integer):
            raise InputError(f"{setting} = {name!r}: {wanted}; it returned {kind_of(parts)}")
        return parts
    for client, part in enumerate(parts):
        if part.ndim != 1 or (len(part) and not np.issubdtype(part.dtype, np.integer)):
            raise InputError(f"{setting} = {name!r}: {wanted}; it gave client {client} {kind_of(part)}")
    return parts


def read_clustering(made: Any, clusters: int, name: str, clients: int, may_empty: bool) -> Clustering:
    """Return a clustering of these clients, made from a `Clustering` or from labels.

    Args:
        made: what the user's function returned.
        clusters: `clustering.clusters`.
        name: `clustering.method`.
        clients: the number of clients.
        may_empty: whether clusters may be empty.

    Raises:
        InputError: it is no clustering, has another number of clients, or has an empty cluster.
    """
    clustering = made if isinstance(made, Clustering) else read_labels(made, clusters, name)
    if len(clustering.labels) != clients:
        raise InputError(f"clustering.method = {name!r}: gave {len(clustering.labels)} labels for {clients} clients")
    if not may_empty and (empty := np.flatnonzero(clustering.sizes == 0)).size:
        raise InputError(
            f"clustering.clusters = {clustering.clusters}: clustering.method = {name!r} leaves "
            f"cluster {empty[0]} without clients; lower clustering.clusters"
        )
    return clustering


def read_labels(made: Any, clusters: int, name: str) -> Clustering:
    """Return a clustering from an array of labels, one per client, -1 for a client left out.

    Raises:
        InputError: it is not a flat array of whole numbers from -1 to clusters - 1.
    """
    wanted = "must return a Clustering, or a flat array with one whole number per client"
    try:
        array = np.asarray(made)
        with np.errstate(invalid="ignore"):
            whole = array.astype(np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"clustering.method = {name!r}: {wanted}; it returned {kind_of(made)}") from error
    if array.ndim != 1 or not np.array_equal(whole, array):
        raise InputError(f"clustering.method = {name!r}: {wanted}; it returned {kind_of(made)}")
    if len(whole) and not -1 <= whole.min() <= whole.max() < clusters:
        low, high = whole.min(), whole.max()
        raise InputError(
            f"clustering.method = {name!r}: labels must be from -1 (left out) to clustering.clusters - 1 = "
            f"{clusters - 1}; it returned labels from {low} to {high}"
        )
    return Clustering(whole, clusters)


def read_dataset(made: Any, name: str) -> Dataset:
    """Return a data set, whose parts were checked when it was made.

    Raises:
        InputError: it is no data set.
    """
    if not isinstance(made, Dataset):
        raise InputError(f"data.dataset = {name!r}: must return an atoll.Dataset, it returned {kind_of(made)}")
    return made
