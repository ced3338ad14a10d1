"""From settings to a clustering."""

from collections.abc import Callable, Mapping
from typing import Any

from atoll.clustering.clustering import Clustering
from atoll.clustering.named_clusterings import CLUSTERINGS
from atoll.data.population import Population
from atoll.experiment.checks import read_clustering
from atoll.settings.plugins import call, resolve
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.seeds import generator


def make_clustering(
    settings: Settings,
    population: Population,
    round_: int,
    offered: Mapping[str, Callable[[], Any]],
    may_empty: bool,
) -> Clustering:
    """Return the clustering that the settings name.

    Args:
        settings: the run's settings.
        population: as clients report it.
        round_: the round from which it applies; each round draws its own random numbers.
        offered: makes the objects that a clustering may request by name.
        may_empty: whether clusters may be empty, as an aggregator's may on a network.

    Raises:
        InputError: there are more clusters than clients, or a user's function returned no clustering.
    """
    wanted = settings.clustering
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
