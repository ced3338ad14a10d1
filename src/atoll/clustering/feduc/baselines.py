"""The baselines of FedUC's clustering: communication-aware and data-aware (Sec. VI-A)."""

import numpy as np

from atoll.clustering.clustering import Clustering, checked_rule
from atoll.data.population import Population
from atoll.network.network import Network

_TIE = 1e-12  # distances this close are equal up to rounding
_EMPTY = 1.0  # distance of a cluster without clients: larger than a single class's, so all clusters are used


@checked_rule
def comaw(network: Network) -> Clustering:
    """Assign each client to the aggregator with the shortest upload (ComAw); on ties the lower index."""
    return Clustering(network.upload_seconds.argmin(axis=1), network.aggregators)


@checked_rule
def dataw(population: Population, clusters: int) -> Clustering:
    """Give each cluster class shares like the population's (DatAw).

    A cluster's distance is the sum over classes of (its share - the population's) squared, and 1 without clients. By
    decreasing size (on ties the lower index first) each client goes to the cluster whose distance it lowers most,
    or raises least; on ties the lower index. A cluster takes at most ``ceil(clients / clusters)`` clients.

    The change counts, not the resulting distance: for clients of one class each, the latter mixes no better than
    chance.
    """
    counts = population.class_counts().astype(np.float64)
    overall = counts.sum(axis=0) / counts.sum()
    cap = -(-len(population) // clusters)
    labels = np.empty(len(population), np.int64)
    held = np.zeros((clusters, counts.shape[1]))
    distances = np.full(clusters, _EMPTY)
    sizes = np.zeros(clusters, np.int64)
    for client in np.argsort(-population.sizes, kind="stable").tolist():
        shares = held + counts[client]
        shares /= shares.sum(axis=1, keepdims=True)
        shares -= overall
        distances_then = np.square(shares, out=shares).sum(axis=1)
        rises = np.where(sizes == cap, np.inf, distances_then - distances)
        cluster = int((rises <= rises.min() + _TIE).argmax())
        labels[client] = cluster
        held[cluster] += counts[client]
        distances[cluster] = distances_then[cluster]
        sizes[cluster] += 1
    return Clustering(labels, clusters)
