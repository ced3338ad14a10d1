"""PACFL: clustering before training, by angles between clients' data subspaces (Vahidian et al. 2023)."""

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import PairwiseLinkage, agglomerate, fedavg_apart, require_enough
from atoll.schedules.clock import Clock
from atoll.support.arrays import Floats, Ids
from atoll.support.limits import NotNegative, Positive, Share

if TYPE_CHECKING:
    from torch import nn

Angle = Literal["smallest", "sum"]


@checked
def pacfl(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    clusters: Positive = 4,
    vectors: Positive = 3,
    angle: Angle = "sum",
    linkage: PairwiseLinkage = "average",
    threshold: NotNegative | None = None,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
    model_bytes: Positive | None = None,
) -> Method:
    """PACFL: clients are clustered by a few singular vectors of their data; each cluster then runs FedAvg.

    Vahidian et al. 2023, "Efficient distribution similarity identification in clustered federated learning via
    principal angles between client data subspaces". Client i sends ``U_i``, the p leading left singular vectors of its
    inputs of each class. The distance of two clients is the smallest principal angle between all their vectors
    (`smallest`), or the sum of principal angles class by class (`sum`), with 90 degrees for each vector that the other
    client lacks; both are independent of the vectors' signs. Clustering is agglomerative; all clusters start from one
    model. The vectors, at four bytes per element, count as models sent in the first event, rounded up.

    Args:
        module: the model.
        clusters: number of clusters; with a threshold, the maximum.
        vectors: singular vectors per class, p.
        angle: distance between two clients.
        threshold: clusters farther apart (degrees) are merged only while there are more than `clusters`; unset:
            merging stops at `clusters`.
        model_bytes: bytes of what of it is communicated, the unit for counting vectors; unset: of all of it.

    Raises:
        InputError: more clusters than clients.
    """
    require_enough(population, clusters)
    bases = signatures(population, module, vectors)
    labels = agglomerate(distances_between(bases, angle), clusters, linkage, threshold)
    numbers = int(bases.any(axis=2).sum()) * bases.shape[2]
    return fedavg_apart(population, rule, rounds, labels, fraction, clock, seed, numbers, module, model_bytes)


def signatures(population: Population, module: "nn.Module", vectors: int) -> Floats:
    """Return each client's leading left singular vectors of its inputs of each class, as columns.

    The shape is [clients, classes, features, vectors], with zero columns where inputs have lower rank. Regression
    counts as one class. Inputs are preprocessed as for the model.
    """
    from atoll.local.batches import Batches  # late: reading settings needs no PyTorch

    data, batches = population.data, Batches(population.data, module)
    bases = np.zeros((len(population), max(data.classes, 1), math.prod(data.shape), vectors))
    for client in range(len(population)):
        rows = population.samples(client)
        inputs = batches.gather(rows)[0].double().cpu().numpy().reshape(len(rows), -1)
        labels = data.labels_of(rows) if data.classes else np.zeros(len(rows), np.int64)
        for label in np.unique(labels):
            left = _span(inputs[labels == label].T)[:, :vectors]
            bases[client, label, :, : left.shape[1]] = left
    return bases


def distances_between(bases: Floats, angle: Angle) -> Floats:
    """Return clients' pairwise distances in degrees, in the order of `scipy.spatial.distance.pdist`."""
    if angle == "smallest":
        spans = [_span(np.concatenate(list(each), axis=1)) for each in bases]
        bases = np.zeros((len(spans), 1, bases.shape[2], max(span.shape[1] for span in spans)))
        for row, span in zip(bases, spans, strict=True):
            row[0, :, : span.shape[1]] = span
    ranks = bases.any(axis=2).sum(axis=2)
    return np.concatenate([[], *(_angles(bases, ranks, client, angle) for client in range(len(bases) - 1))])


def _angles(bases: Floats, ranks: Ids, client: int, angle: Angle) -> Floats:
    """Return a client's distances to all later clients."""
    products = np.swapaxes(bases[client], 1, 2) @ bases[client + 1 :]
    cosines = np.minimum(np.linalg.svd(products, compute_uv=False), 1.0)  # of the principal angles, which ascend
    degrees = np.degrees(np.arccos(cosines))
    if angle == "smallest":
        return np.asarray(degrees.min(axis=(1, 2)))
    there = np.maximum(ranks[client], ranks[client + 1 :])[..., None] > np.arange(degrees.shape[2])
    return np.asarray(np.where(there, degrees, 0.0).sum(axis=(1, 2)))


def _span(columns: Floats) -> Floats:
    """Return a matrix's left singular vectors with singular values above rounding error, leading first."""
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, values > values.max(initial=0) * max(columns.shape) * np.finfo(float).eps])
