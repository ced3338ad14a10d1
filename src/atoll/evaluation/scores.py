"""Losses and accuracies of one model, and of several models between which clients choose."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from atoll.data.population import Population
from atoll.local.batches import SHARED_BATCH, Batches, measure_models, measure_samples
from atoll.local.models import Model
from atoll.local.threads import side_by_side
from atoll.support.arrays import Floats, Ids, Mask, least
from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.process import one_thread
from atoll.support.requiring import require
from atoll.support.seeds import generator

_BATCH = 1000  # samples at once, but of a forward pass on a processor `SHARED_BATCH`
_AT_ONCE = 10_000_000  # indices counted
_BATCH_BYTES = 3 << 20  # of its inputs; the activations of more do not fit into the cache


@dataclass(frozen=True)
class Score:
    """Losses and accuracies of one model; accuracies are None for regression."""

    train_loss: float
    test_loss: float
    test_accuracy: float | None


class Evaluator:
    """Scores models on the union of all clients' data and on the test set.

    The training loss weighs every pool sample by how many clients hold it, so no sample is visited twice. With
    `samples` it is that of a fixed, seeded draw of so many samples of the union. `tested` are the tests, at first all.
    """

    def __init__(
        self, population: Population, module: nn.Module, samples: int | None = None, seed: int = 0, threads: int = 1
    ) -> None:
        """Count how often each pool sample is held; the number of threads does not change results."""
        require("population", population, Population)
        require("module", module, nn.Module)
        require("run.evaluate_samples", samples, Positive | None)
        data = population.data
        self.threads = threads
        self.module = module
        self.pool = Batches(data, module)
        self.tests = Batches(data.test, module)
        self.tested: npt.NDArray[np.integer] = np.arange(len(self.tests))
        held = population.indices
        if samples is not None and samples < len(held):
            held = held[np.sort(generator(seed, "evaluate").choice(len(held), samples, replace=False))]
        self.samples = len(held)
        counts = np.zeros(len(data), np.int64)
        for low in range(0, len(held), _AT_ONCE):
            counts += np.bincount(held[low : low + _AT_ONCE], minlength=len(data))
        self.rows = np.flatnonzero(counts)
        self.weights = counts[self.rows] / len(held)

    def score(self, model: Model) -> Score:
        """Return the model's losses and accuracy."""
        return Score(self.train_loss(model), *self.test(model))

    def train_loss(self, model: Model) -> float:
        """Return the model's mean loss on the union of all clients' data."""
        return float(self._measure(model, self.pool, self.rows)[0] @ self.weights)

    def test(self, model: Model) -> tuple[float, float | None]:
        """Return the model's test loss and accuracy."""
        losses, hits = self._measure(model, self.tests, self.tested)
        return float(losses.mean()), float(hits.mean()) if self.tests.classifies else None

    @one_thread()
    def _measure(self, model: Model, batches: Batches, rows: npt.NDArray[np.integer]) -> tuple[Floats, Floats]:
        """Return each sample's loss, and the share of it that is classified correctly."""
        parts = list(blocks(rows, _batch_of(batches)))
        measured = side_by_side(
            lambda module, part: measure_samples(module, batches, [model], part), self.module, parts, self.threads
        )
        losses, hits = (torch.cat(each)[:, 0].cpu().numpy() for each in zip(*measured, strict=True))
        return losses, hits


def _batch_of(batches: Batches) -> int:
    """Return how many samples to measure at once."""
    each = math.prod(batches.inputs.shape[1:]) * batches.dtype.itemsize
    return _BATCH if batches.inputs.device.type != "cpu" else max(1, min(SHARED_BATCH["cpu"], _BATCH_BYTES // each))


@dataclass(frozen=True, eq=False)
class ClusterScore:
    """Losses and accuracies if each client uses one of several models: its cluster's, or that of the least loss.

    Attributes:
        score: over all clients, weighted by samples.
        confusion: clients of each planted group that use each model, [groups, models].
        ari: adjusted Rand index of planted and recovered clusters; None if nothing is planted.
        accuracies: test accuracy of each model over the test clients that use it; None for a model without any.
        losses: test loss of each model over the same.
    """

    score: Score
    confusion: Ids
    ari: float | None
    accuracies: tuple[float | None, ...]
    losses: tuple[float | None, ...]


class ClusterEvaluator:
    """Scores several models at once.

    Where clusters are learned, a client uses its cluster's model; a client without a cluster, like every test client,
    uses the model with the least loss on its data, among the clusters that have clients.

    With `samples` the training loss and the clusters are those of a fixed, seeded draw of clients with about this many
    samples in total. With `paired`, where clients' data change, there is a test client for each client, drawn or not,
    which uses its client's model instead, and each of the pool's planted groups counts.
    """

    def __init__(
        self,
        population: Population,
        test_clients: Population,
        module: nn.Module,
        samples: int | None = None,
        seed: int = 0,
        threads: int = 1,
        paired: bool = False,
    ) -> None:
        """Choose the clients to evaluate; the number of threads does not change results."""
        self.threads = threads
        clients = len(population)
        if samples is not None:
            clients = min(clients, max(1, round(samples / population.sizes.mean())))
        self.module = module
        self.paired = paired
        self.population = population
        self.clients = np.sort(generator(seed, "evaluate").choice(len(population), clients, replace=False))
        self.samples = int(population.sizes[self.clients].sum())
        groups = population.groups()
        self.groups, self.is_planted = groups[self.clients], bool(groups.max())
        if paired:  # clients' data change: in a phase some groups may have no client, but rows have one form
            groups = population.data.groups_of(np.arange(len(population.data)))
        self.planted = int(groups.max()) + 1
        self.test_clients = test_clients
        self.pool = Batches(population.data, module)
        self.tests = Batches(test_clients.data, module)

    @one_thread()
    def score(self, models: Sequence[Model], labels: Ids | None = None) -> ClusterScore:
        """Return losses, accuracies and the recovered clusters; `labels` are the clients' learned clusters."""
        losses, clusters = self._train(models, labels, self.clients)
        taken = losses[np.arange(len(clusters)), clusters]
        train_loss = float(np.average(taken, weights=self.population.sizes[self.clients]))
        tests = [self.test_clients.samples(k) for k in range(len(self.test_clients))]
        everyone = np.arange(len(tests))
        tested = measure_models(self.module, self.tests, models, tests, self.threads)
        if not self.paired:
            chosen = least_of(tested.losses, labels)
        elif len(clusters) == len(everyone):
            chosen = clusters
        elif labels is not None and labels.min() >= 0:  # all are known, so none need be measured
            chosen = labels
        else:
            chosen = self._train(models, labels, everyone)[1]
        hits, sizes = tested.accuracies[everyone, chosen], self.test_clients.sizes

        def over(values: Floats, its: Mask) -> float | None:
            return float(np.average(values[its], weights=sizes[its])) if its.any() else None

        def accuracy(its: Mask) -> float | None:
            return over(hits, its) if self.pool.classifies else None

        confusion = np.zeros((self.planted, len(models)), np.int64)
        np.add.at(confusion, (self.groups, clusters), 1)
        losses = tested.losses[everyone, chosen]
        return ClusterScore(
            score=Score(train_loss, float(np.average(losses, weights=sizes)), accuracy(np.ones(len(hits), bool))),
            confusion=confusion,
            ari=adjusted_rand_index(self.groups, clusters) if self.is_planted else None,
            accuracies=tuple(accuracy(chosen == p) for p in range(len(models))),
            losses=tuple(over(losses, chosen == p) for p in range(len(models))),
        )

    def _train(self, models: Sequence[Model], labels: Ids | None, clients: Ids) -> tuple[Floats, Ids]:
        """Return clients' losses with each model, and their clusters."""
        rows = [self.population.samples(int(k)) for k in clients]
        losses = measure_models(self.module, self.pool, models, rows, self.threads).losses
        clusters = least_of(losses, labels)
        return losses, clusters if labels is None else np.where(labels[clients] < 0, clusters, labels[clients])


def least_of(losses: Floats, labels: Ids | None) -> Ids:
    """Return the column of the least loss in each row, among the clusters that have clients if any have."""
    used = np.arange(losses.shape[1]) if labels is None or labels.max() < 0 else np.unique(labels[labels >= 0])
    return np.asarray(used[least(losses[:, used])])


def adjusted_rand_index(groups: npt.NDArray[np.integer], clusters: npt.NDArray[np.integer]) -> float:
    """Return how well two groupings of the same clients agree, [clients] each: 1 if equal, 0 on average if random."""
    from sklearn.metrics import adjusted_rand_score  # here, since it is slow to import

    return float(adjusted_rand_score(groups, clusters))


def parameter_error(models: Sequence[Model], planted: Floats) -> float:
    """Return the largest distance between a planted vector, [groups, parameters], and its model.

    The matching minimises the sum; there may be more models than vectors.
    """
    from scipy.optimize import linear_sum_assignment  # SciPy's solvers load slowly

    flat = [torch.cat([t.reshape(-1) for name, t in model.items() if "@" not in name]) for model in models]
    if len(flat) < len(planted) or flat[0].numel() != planted.shape[1]:
        raise InputError(
            f"the planted parameters are {planted.shape[0]} vectors of {planted.shape[1]}, the models {len(flat)} of "
            f"{flat[0].numel()}"
        )
    vectors = torch.stack(flat).double().cpu().numpy()
    distances = np.linalg.norm(planted[:, None] - vectors[None], axis=2)
    return float(distances[linear_sum_assignment(distances)].max())


def blocks(rows: npt.NDArray[Any], size: int = _BATCH) -> Iterator[npt.NDArray[Any]]:
    """Yield these rows in blocks of a size."""
    for low in range(0, len(rows), size):
        yield rows[low : low + size]
