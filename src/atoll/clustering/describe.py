"""Description of a clustering: sizes, and how far each cluster's class shares are from the population's."""

from dataclasses import dataclass

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.support.arrays import Floats


@dataclass(frozen=True)
class ClusterProfile:
    """One cluster.

    Attributes:
        emd: sum over classes of |share in the cluster - share in the population|, from 0 to 2.
        emd_norm: Euclidean norm of the same differences, from 0 to below the root of 2.
        major_class: the most frequent major class of its clients; a client's is the class with most samples.
        major_share: share of its clients with that major class.
        hour: UTC time of day at which it trains, or None.
    """

    size: int
    samples: int
    emd: float
    emd_norm: float
    major_class: int
    major_share: float
    hour: float | None
    members: list[int]


def describe(population: Population, clustering: Clustering) -> list[ClusterProfile]:
    """Return the profile of every cluster."""
    counts = population.class_counts()
    overall = counts.sum(axis=0) / counts.sum()
    own = counts.argmax(axis=1)
    profiles = []
    for cluster in range(clustering.clusters):
        members = clustering.members(cluster)
        held = counts[members].sum(axis=0)
        differences = held / max(held.sum(), 1) - overall
        majors = np.bincount(own[members], minlength=len(overall))
        profile = ClusterProfile(
            size=len(members),
            samples=int(held.sum()),
            emd=float(np.abs(differences).sum()),
            emd_norm=float(np.linalg.norm(differences)),
            major_class=int(majors.argmax()),
            major_share=float(majors.max() / max(len(members), 1)),
            hour=None if clustering.hours is None else clustering.hours[cluster],
            members=members.tolist(),
        )
        profiles.append(profile)
    return profiles


def class_shares(population: Population, clustering: Clustering) -> Floats:
    """Return each cluster's share of samples of each class, [clusters, classes]."""
    counts = population.class_counts()
    held = np.stack([counts[clustering.members(c)].sum(axis=0) for c in range(clustering.clusters)])
    return np.asarray(held / np.maximum(held.sum(axis=1, keepdims=True), 1))
