"""Principal angles between clients' data subspaces: PACFL's client signatures and their distances."""

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from atoll.data.population import Population
from atoll.support.arrays import Floats, Ids

if TYPE_CHECKING:
    from torch import nn

Angle = Literal["smallest", "sum"]


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
    """Return clients' pairwise distances in degrees, in the order of `scipy.spatial.distance.pdist`.

    >>> x, y = [[1.0], [0.0]], [[0.0], [1.0]]  # the signatures of two clients with one class and one vector
    >>> distances_between(np.array([[x], [x], [y]]), "sum")
    array([ 0., 90., 90.])
    """
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
    cosines = np.minimum(np.linalg.svd(products, compute_uv=False), 1.0)  # of the principal angles, ascending
    degrees = np.degrees(np.arccos(cosines))
    if angle == "smallest":
        return np.asarray(degrees.min(axis=(1, 2)))
    there = np.maximum(ranks[client], ranks[client + 1 :])[..., None] > np.arange(degrees.shape[2])
    return np.asarray(np.where(there, degrees, 0.0).sum(axis=(1, 2)))


def _span(columns: Floats) -> Floats:
    """Return a matrix's left singular vectors with singular values above rounding error, leading first."""
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, values > values.max(initial=0) * max(columns.shape) * np.finfo(float).eps])
