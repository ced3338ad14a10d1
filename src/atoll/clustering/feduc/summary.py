"""The summary of a clustering of a network: its bound, and every cluster's data, seconds, frequency and links."""

from dataclasses import dataclass

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.clustering.describe import ClusterProfile, describe
from atoll.clustering.feduc.bound import Bound, evaluate
from atoll.clustering.feduc.problem import Problem
from atoll.data.population import Population


@dataclass(frozen=True)
class PlannedCluster:
    """One aggregator and its clients: a `ClusterProfile`, its entries of the `Bound`, and its place in the network.

    Attributes:
        emd: None without clients, as is `emd_norm`.
        limit_seconds: the limit of `completion_seconds`, or None.
        links: number of neighbours.
    """

    size: int
    samples: int
    emd: float | None
    emd_norm: float | None
    completion_seconds: float
    limit_seconds: float | None
    event_seconds: float
    psi: float
    beta: float
    xi: float
    gamma: float
    links: int
    members: list[int]


@dataclass(frozen=True)
class ClusteringSummary:
    """A clustering of a network: what its `Problem` and its `Bound` say of the whole.

    Attributes:
        mean_emd: mean EMD of the clusters with clients.
        weighted_emd: the same, weighted by samples.
        mean_emd_norm: mean `emd_norm` of the clusters with clients.
        weighted_emd_norm: the same, weighted by samples.
        max_completion_seconds: the longest completion.
        clusters: every aggregator.
    """

    pattern: str
    kappa: float
    delta: float
    bound: float
    initial_gap: float
    mu: float
    smoothness: float
    tau_max: float
    steps: float
    virtual_seconds: float
    mean_emd: float
    weighted_emd: float
    mean_emd_norm: float
    weighted_emd_norm: float
    max_completion_seconds: float
    clusters: list[PlannedCluster]


def make_plan(population: Population, clustering: Clustering, problem: Problem) -> ClusteringSummary:
    """Evaluate a clustering of a network by the bound, whatever rule made it."""
    bound = evaluate(problem, clustering.labels)
    clusters = [_cluster(j, profile, bound, problem) for j, profile in enumerate(describe(population, clustering))]
    occupied = [cluster for cluster in clusters if cluster.emd is not None]
    emds = np.array([[cluster.emd, cluster.emd_norm] for cluster in occupied], float)
    mean_emd, mean_emd_norm = emds.mean(axis=0).tolist()
    weighted_emd, weighted_emd_norm = np.average(emds, axis=0, weights=[c.samples for c in occupied]).tolist()
    given = ("pattern", "initial_gap", "mu", "smoothness")
    found = ("kappa", "delta", "bound", "tau_max", "steps", "virtual_seconds")
    return ClusteringSummary(
        **{name: getattr(problem, name) for name in given},
        **{name: getattr(bound, name) for name in found},
        mean_emd=mean_emd,
        weighted_emd=weighted_emd,
        mean_emd_norm=mean_emd_norm,
        weighted_emd_norm=weighted_emd_norm,
        max_completion_seconds=float(bound.completion_seconds.max()),
        clusters=clusters,
    )


def _cluster(j: int, profile: ClusterProfile, bound: Bound, problem: Problem) -> PlannedCluster:
    found = ("completion_seconds", "event_seconds", "psi", "beta", "xi", "gamma")
    return PlannedCluster(
        **{name: float(getattr(bound, name)[j]) for name in found},
        size=profile.size,
        samples=profile.samples,
        emd=profile.emd if profile.size else None,
        emd_norm=profile.emd_norm if profile.size else None,
        limit_seconds=float(problem.limits[j]) if np.isfinite(problem.limits[j]) else None,
        links=len(problem.network.neighbours[j]),
        members=profile.members,
    )
