"""FL+HC: after some rounds of FedAvg, clients are clustered once by their updates (Briggs et al. 2020)."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from atoll.data.population import Population
from atoll.engine.grouping import Grouping
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import Linkage, Turn, agglomerate, apart, as_vectors, cosine_distances
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event
from atoll.schedules.timeline import cohort_size, draw_cohort
from atoll.support.errors import InputError
from atoll.support.limits import Count, NotNegative, Positive, Share
from atoll.support.seeds import generator

Metric = Literal["euclidean", "manhattan", "cosine"]


@checked
def flhc(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: Positive = 4,
    warmup: Count = 5,
    linkage: Linkage = "complete",
    metric: Metric = "euclidean",
    threshold: NotNegative | None = None,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FL+HC: FedAvg, then one round that clusters all clients by their updates, then FedAvg within each cluster.

    Briggs, Fan and Andras 2020, "Federated learning with hierarchical clustering of local updates to improve training
    on non-IID data", Algorithm 1. In round `warmup` every client trains from the joint model w; the updates
    ``w_i - w`` are clustered agglomeratively, then discarded. All clusters continue from w.

    Args:
        rounds: number of rounds, T, including warm-up and clustering.
        clusters: number of clusters; with a threshold, the maximum.
        warmup: rounds of FedAvg before clustering.
        linkage: distance between two clusters of updates.
        metric: distance between two updates.

    Raises:
        InputError: the warm-up leaves no round, Ward's linkage is used with another metric, or too many clusters.
    """
    if warmup >= rounds:
        raise InputError(f"method.warmup = {warmup}: must be less than rounds = {rounds}, to leave one for clustering")
    if linkage == "ward" and metric != "euclidean":
        raise InputError(f"method.metric = {metric!r}: must be 'euclidean' with method.linkage = 'ward'")
    from atoll.methods.parts.update_trainers import UpdateTrainer  # late: reading settings needs no PyTorch

    everyone = np.arange(len(population))
    size = cohort_size(fraction, len(everyone))
    turns = [Turn(draw_cohort(everyone, size, generator(seed, "cohort", j)), j) for j in range(rounds)]
    turns[warmup] = Turn(everyone, warmup, regroups=True, asks=True)
    return Method(
        apart(population, clusters, turns, rounds, clock),
        rule,
        trainer=UpdateTrainer,
        labels=np.zeros_like(everyone),
        regroup=Agglomeration(clusters, linkage, metric, threshold),
    )


@dataclass(frozen=True)
class Agglomeration:
    """Clusters all clients by their updates; every cluster continues from the joint model."""

    clusters: int
    linkage: Linkage
    metric: Metric
    threshold: float | None

    def __call__(self, event: Event, state: State) -> Grouping:
        """Return the clusters."""
        from scipy.spatial.distance import pdist

        updates = as_vectors([state.clients[k] for k in event.cohort.tolist()])
        pairwise = partial(pdist, metric="cityblock" if self.metric == "manhattan" else "euclidean")
        distances = (cosine_distances if self.metric == "cosine" else pairwise)(updates)
        labels = agglomerate(distances, self.clusters, self.linkage, self.threshold)
        return Grouping(labels, dict.fromkeys(range(int(labels.max()) + 1), state.starts[0]))
