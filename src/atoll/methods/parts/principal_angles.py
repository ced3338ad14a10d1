"""Principal angles between what clients' data span: what PACFL's clients send, and how far apart they are."""

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from atoll.data.population import Population
from atoll.support.arrays import Floats, Ids

if TYPE_CHECKING:
    from torch import nn

Angle = Literal["smallest", "sum"]


def signatures(population: Population, module: "nn.Module", vectors: int) -> Floats:
    """Return what clients send: leading left singular vectors of each one's inputs of each class, as columns.

    It is [clients, classes, features, vectors], with columns of zeros where inputs span less. Regression counts as one
    class. Inputs are as a model gets them.
    """
    from atoll.local.batches import Batches  # needs PyTorch, which settings do not wait for

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
    """Return the distance of every pair of clients in degrees, as `scipy.spatial.distance.pdist` orders them.

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
    return np.concatenate([_angles(bases, ranks, client, angle) for client in range(len(bases) - 1)])


def _angles(bases: Floats, ranks: Ids, client: int, angle: Angle) -> Floats:
    """Return the distance of a client to each that follows."""
    products = np.swapaxes(bases[client], 1, 2) @ bases[client + 1 :]
    cosines = np.minimum(np.linalg.svd(products, compute_uv=False), 1.0)  # of the principal angles, ascending
    degrees = np.degrees(np.arccos(cosines))
    if angle == "smallest":
        return np.asarray(degrees.min(axis=(1, 2)))
    there = np.maximum(ranks[client], ranks[client + 1 :])[..., None] > np.arange(degrees.shape[2])
    return np.asarray(np.where(there, degrees, 0.0).sum(axis=(1, 2)))


def _span(columns: Floats) -> Floats:
    """Return the left singular vectors of a matrix that belong to singular values above rounding, leading first."""
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, values > values.max(initial=0) * max(columns.shape) * np.finfo(float).eps])
