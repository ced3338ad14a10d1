"""From settings to a clustering, checked where a user's function makes it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.clustering.named_clusterings import CLUSTERINGS
from atoll.data.population import Population
from atoll.settings.choices import uses_network
from atoll.settings.plugins import call, resolve
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, reading
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
    return read_clustering(made, wanted.clusters, wanted.method, len(population), may_empty=may_empty)


def read_clustering(made: Any, clusters: int, name: str, clients: int, may_empty: bool) -> Clustering:
    """Return a clustering of these clients, made from a `Clustering` or from labels."""
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
