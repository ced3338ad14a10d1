"""The papers' convergence bounds, as functions of a problem's constants."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.support.errors import InputError


@dataclass(frozen=True)
class FedClusterBound:
    """FedCluster's Theorem 1.

    Attributes:
        lr: the learning rate it asks for, ``(T M E) ** -0.5``.
        constant: C of eq. (4).
        bound: ``2 C / sqrt(T M E)``, which the mean over rounds of E||grad f||^2 at round starts does not exceed.
        unmet: the theorem's conditions that do not hold here, in words; the bound is proven only if there are none.
    """

    lr: float
    constant: float
    bound: float
    unmet: tuple[str, ...]


def fedcluster_bound(
    population: Population,
    clustering: Clustering,
    *,
    rounds: int,
    steps: int,
    smoothness: float,
    gradient_bound: float,
    gap: float,
    h_cluster: float,
    variances: Sequence[float],
) -> FedClusterBound:
    """Return the bound of FedCluster with local SGD, batch size 1 and full participation (Chen et al. 2020).

    Args:
        population: gives p_k.
        clustering: gives M and q_K.
        rounds: T.
        steps: E.
        smoothness: L.
        gradient_bound: G; squared norms of sample gradients at the models of the run are at most G^2 in the mean.
        gap: f(W_0) - inf f.
        h_cluster: H_cluster, the supremum, or the largest value observed.
        variances: s_k^2 for each client; for batches of b samples pass s_k^2 / b.
    """
    if len(variances) != len(population):
        raise InputError(f"variances has {len(variances)} values for {len(population)} clients")
    shares = population.shares
    q = np.bincount(clustering.labels, weights=shares, minlength=clustering.clusters)
    # Sampling noise: sum over clusters K of q_K * (sum over k in K of (p_k / q_K)^2 s_k^2).
    noise = float(np.sum(shares**2 * np.asarray(variances) / q[clustering.labels]))
    # (4): progress left to make, and what gradients' spread over clusters and samples costs.
    constant = 2 * gap + 4 * smoothness * (h_cluster + noise)
    cycles, total = clustering.clusters * steps, rounds * clustering.clusters * steps
    unmet = []
    if cycles * 8 * smoothness * gradient_bound**2 > constant:
        unmet.append(f"M E = {cycles} exceeds C / (8 L G^2) = {constant / (8 * smoothness * gradient_bound**2):.3g}")
    if rounds < (least := smoothness**2 * max(1.0, 16 / cycles)):
        unmet.append(f"T = {rounds} is below L^2 max(1, 16 / (E M)) = {least:.3g}")
    return FedClusterBound(total**-0.5, constant, 2 * constant / total**0.5, tuple(unmet))
