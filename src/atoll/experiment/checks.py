"""Checks of what a user's functions return: partitions and clusterings."""

from typing import Any

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.data.dealing.draws import Parts
from atoll.data.population import rows_of_clients
from atoll.support.errors import InputError, reading


def read_parts(made: Any, name: str, setting: str = "data.partition") -> Parts:
    """Return a partition as an array [clients, samples] or a list with one index array per client.

    Raises:
        InputError: it is neither.
    """
    is_table = isinstance(made, np.ndarray) and made.ndim == 2 and made.dtype.kind in "iu"
    return made if is_table else rows_of_clients(made, f"{setting} = {name!r}")


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
    with reading(f"clustering.method = {name!r}"):
        clustering = made if isinstance(made, Clustering) else Clustering(made, clusters)
    if len(clustering.labels) != clients:
        raise InputError(f"clustering.method = {name!r}: gave {len(clustering.labels)} labels for {clients} clients")
    if not may_empty and (empty := np.flatnonzero(clustering.sizes == 0)).size:
        raise InputError(
            f"clustering.clusters = {clustering.clusters}: clustering.method = {name!r} leaves "
            f"cluster {empty[0]} without clients; lower clustering.clusters"
        )
    return clustering
