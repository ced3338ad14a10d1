"""From settings to a clustering, checked where a user's function makes it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.clustering.named_clusterings import CLUSTERINGS
from atoll.data.array_inputs import kind_of
from atoll.data.population import Population
from atoll.settings.choices import uses_network
from atoll.settings.plugins import call, resolve
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.seeds import generator


def make_clustering(
    settings: Settings, population: Population, round_: int, offered: Mapping[str, Callable[[], Any]]
) -> Clustering:
    """Return the clustering that the settings name, from this round on; each round draws its own random numbers.

    `offered` makes the objects that a clustering may request by name. On a network an aggregator may have no clients.
    """
    wanted, may_empty = settings.clustering, uses_network(settings)
    if not may_empty and wanted.clusters > len(population):
        raise InputError(f"clustering.clusters = {wanted.clusters}: must be at most data.clients = {len(population)}")
    rule = resolve("clustering.method", wanted.method, CLUSTERINGS)
    given: dict[str, Any] = {
        **dict(wanted),
        "population": population,
        "rng": generator(settings.seed, "clustering", *((round_,) if round_ else ())),
        "rounds": settings.rounds,
        "seed": settings.seed,
    }
    given |= {name: make() for name, make in offered.items() if asks_for(rule, name)}
    made = call("clustering.method", rule, given, wanted.model_extra)
    return _read_clustering(made, wanted.clusters, wanted.method, len(population), may_empty=may_empty)


def _read_clustering(made: Any, clusters: int, name: str, clients: int, may_empty: bool) -> Clustering:
    """Return a clustering of these clients, made from a `Clustering` or from labels."""
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
    """Return a clustering from an array of labels, one per client, -1 for a client left out."""
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
