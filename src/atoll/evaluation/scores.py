"""Evaluation: losses and accuracies of a model, and how different the clients' and clusters' gradients are."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.local.batches import Batches, measure_models, side_by_side
from atoll.local.models import Model
from atoll.local.weights import load_model
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.process import one_thread
from atoll.support.requiring import require
from atoll.support.seeds import generator

_BATCH = 1000  # samples in one forward pass
_BATCH_BYTES = 3 << 20  # of its inputs; what comes of more does not fit into the cache


@dataclass(frozen=True)
class Score:
    """Losses and accuracies of one model; accuracies are None for regression."""

    train_loss: float
    test_loss: float
    test_accuracy: float | None


class Evaluator:
    """Scores models on the union of all clients' data and on the test set.

    The training loss counts every pool sample as often as clients hold it, so it is that of the union without
    visiting a sample twice. With `samples` it is that of a fixed, seeded draw of so many samples of the union.
    """

    def __init__(
        self, population: Population, module: nn.Module, samples: int | None = None, seed: int = 0, threads: int = 1
    ) -> None:
        """Count how often each pool sample is held; score in so many threads, which changes no bits."""
        require("population", population, Population)
        require("module", module, nn.Module)
        require("run.evaluate_samples", samples, Positive | None)
        data = population.data
        self.threads = threads
        self.module = module
        self.pool = Batches(data, module)
        self.tests = Batches(data.test, module)
        held = population.indices
        if samples is not None and samples < len(held):
            held = held[np.sort(generator(seed, "evaluate").choice(len(held), samples, replace=False))]
        self.samples = len(held)
        counts = np.bincount(held, minlength=len(data))
        self.rows = np.flatnonzero(counts)
        self.weights = counts[self.rows] / len(held)

    def score(self, model: Model) -> Score:
        """Return the model's losses and accuracy."""
        return Score(self.train_loss(model), *self.test(model))

    @one_thread()
    @torch.no_grad()
    def train_loss(self, model: Model) -> float:
        """Return the model's mean loss on the union of all clients' data."""
        load_model(self.module, model)
        self.module.eval()
        losses, _ = self._measure(self.pool, self.rows)
        return float(losses @ self.weights)

    @one_thread()
    @torch.no_grad()
    def test(self, model: Model) -> tuple[float, float | None]:
        """Return the model's test loss and accuracy."""
        load_model(self.module, model)
        self.module.eval()
        losses, hits = self._measure(self.tests, np.arange(len(self.tests)))
        return float(losses.mean()), float(hits.mean()) if len(hits) else None

    def _measure(self, batches: Batches, rows: Ids) -> tuple[Floats, Floats]:
        """Return the loss of each of these samples, and what share of it is answered rightly; nothing for numbers."""

        def measure(module: nn.Module, part: Ids) -> tuple[Tensor, Tensor]:
            inputs, targets = batches.gather(part)
            outputs = module(inputs)
            hits = torch.empty(0) if batches.hits is None else batches.hits(outputs, targets)
            return batches.losses(outputs, targets).double(), hits

        parts = list(_blocks(rows, _batch_of(batches)))
        losses, hits = zip(*side_by_side(measure, self.module, parts, self.threads), strict=True)
        return torch.cat(losses).cpu().numpy(), torch.cat(hits).cpu().numpy()


def _batch_of(batches: Batches) -> int:
    """Return how many samples to measure at once."""
    each = math.prod(batches.inputs.shape[1:]) * batches.dtype.itemsize
    return _BATCH if batches.inputs.device.type != "cpu" else max(1, min(_BATCH, _BATCH_BYTES // each))


@dataclass(frozen=True, eq=False)
class ClusterScore:
    """Losses and accuracies where each client takes one of several models: its cluster's, or that of the least loss.

    Attributes:
        score: over all clients, weighted by samples.
        confusion: clients of each planted group that take each model, [groups, models].
        ari: adjusted Rand index of planted and recovered clusters; None if nothing is planted.
        accuracies: test accuracy of each model over the test clients that take it; None for one that nobody takes.
    """

    score: Score
    confusion: Ids
    ari: float | None
    accuracies: tuple[float | None, ...]


class ClusterEvaluator:
    """Scores several models at once.

    A client takes the model of the cluster that it is in, where clusters are learned; one that is in none takes that of
    the least loss on its data. So does every test client, as it is no training client; it has the clusters to choose
    from that have clients.

    With `samples` the training loss and the clusters are those of a fixed, seeded draw of clients with about so many
    samples in all.
    """

    def __init__(
        self,
        population: Population,
        test_clients: Population,
        module: nn.Module,
        samples: int | None = None,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        """Choose the clients to measure; score in so many threads, which changes no bits."""
        self.threads = threads
        clients = len(population)
        if samples is not None:
            clients = min(clients, max(1, round(samples / population.sizes.mean())))
        drawn = generator(seed, "evaluate").choice(len(population), clients, replace=False)
        self.module = module
        self.population = population
        self.clients = np.sort(drawn)
        self.samples = int(population.sizes[self.clients].sum())
        self.groups = population.groups()[self.clients]
        self.planted = int(population.groups().max()) + 1
        self.test_clients = test_clients
        self.pool = Batches(population.data, module)
        self.tests = Batches(test_clients.data, module)

    @one_thread()
    def score(self, models: Sequence[Model], labels: Ids | None = None) -> ClusterScore:
        """Return losses, accuracies and the recovered clusters; `labels` are the clusters that clients are in."""
        rows = [self.population.samples(int(k)) for k in self.clients]
        trained = measure_models(self.module, self.pool, models, rows, self.threads).losses
        clusters = trained.argmin(axis=1)
        if labels is not None:
            clusters = np.where(labels[self.clients] < 0, clusters, labels[self.clients])
        everyone = range(len(self.test_clients))
        tests = [self.test_clients.samples(k) for k in everyone]
        tested = measure_models(self.module, self.tests, models, tests, self.threads)
        chosen = _least_of(tested.losses, labels)
        hits = tested.accuracies[everyone, chosen]
        sizes = self.test_clients.sizes
        by_model = [chosen == p for p in range(len(models))]
        classifies = self.pool.classifies

        def accuracy(its: Mask) -> float | None:
            return float(np.average(hits[its], weights=sizes[its])) if classifies and its.any() else None

        score = Score(
            train_loss=float(
                np.average(trained[np.arange(len(clusters)), clusters], weights=self.population.sizes[self.clients])
            ),
            test_loss=float(np.average(tested.losses[everyone, chosen], weights=sizes)),
            test_accuracy=accuracy(np.ones(len(hits), bool)),
        )
        confusion = np.zeros((self.planted, len(models)), np.int64)
        np.add.at(confusion, (self.groups, clusters), 1)
        return ClusterScore(
            score=score,
            confusion=confusion,
            ari=adjusted_rand_index(self.groups, clusters) if self.planted > 1 else None,
            accuracies=tuple(map(accuracy, by_model)),
        )


def _least_of(losses: Floats, labels: Ids | None) -> Ids:
    """Return the column of the least loss in each row, of those that clients are in where some are."""
    used = np.arange(losses.shape[1]) if labels is None or labels.max() < 0 else np.unique(labels[labels >= 0])
    return np.asarray(used[losses[:, used].argmin(axis=1)])


def adjusted_rand_index(groups: npt.NDArray[np.integer], clusters: npt.NDArray[np.integer]) -> float:
    """Return how well two groupings of the same clients agree, [clients] each: 1 if equal, 0 on average by chance."""
    from sklearn.metrics import adjusted_rand_score  # here, since it is slow to import

    return float(adjusted_rand_score(groups, clusters))


def parameter_error(models: Sequence[Model], planted: Floats) -> float:
    """Return the largest distance between a planted parameter vector and its model, matched to make the sum least.

    Args:
        models: at least as many as there are planted vectors, each with as many parameters.
        planted: [groups, parameters].

    Raises:
        InputError: the models have another number of parameters, or are too few.
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
    rows, columns = linear_sum_assignment(distances)
    return float(distances[rows, columns].max())


@dataclass(frozen=True)
class Heterogeneity:
    """How far the gradients of clients, and of clusters, are from the whole population's, at one model.

    Attributes:
        device: sum over clients of p_k * ||grad f_k - grad f||^2.
        cluster: sum over clusters of q_K * ||grad f_K - grad f||^2; never larger than `device`.
    """

    device: float
    cluster: float


@one_thread()
def heterogeneity(population: Population, clustering: Clustering, module: nn.Module, model: Model) -> Heterogeneity:
    """Measure H_device and H_cluster at a model (FedCluster, eq. 2, whose supremum over models cannot be computed).

    Takes one full gradient per client, and memory for one gradient per cluster. Clients that belong to no cluster
    count in neither.
    """
    require("population", population, Population)
    require("clustering", clustering, Clustering)
    if len(clustering.labels) != len(population):
        told = f"{len(clustering.labels)} clients, but the population has {len(population)}"
        raise InputError(f"clustering: has labels for {told}")
    load_model(module, model)
    module.eval()
    batches = Batches(population.data, module)
    members = np.flatnonzero(clustering.labels >= 0)
    shares = population.sizes[members] / population.sizes[members].sum()
    squares = 0.0
    sums: dict[int, Floats] = {}
    for client, share in zip(members, shares, strict=True):
        gradient = client_gradient(module, batches, population.samples(int(client)))
        squares += share * float(gradient @ gradient)
        cluster = int(clustering.labels[client])
        sums[cluster] = sums.get(cluster, np.zeros_like(gradient)) + share * gradient
    q = np.bincount(clustering.labels[members], weights=shares, minlength=clustering.clusters)
    whole = np.sum(list(sums.values()), axis=0)
    between = sum(float(g @ g) / q[c] for c, g in sums.items())
    norm = float(whole @ whole)
    return Heterogeneity(max(squares - norm, 0.0), max(between - norm, 0.0))


def client_gradient(module: nn.Module, batches: Batches, rows: npt.NDArray[np.int32]) -> Floats:
    """Return the gradient of the mean loss over these pool samples, all parameters in one float64 vector."""
    parameters = list(module.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for part in _blocks(rows):
        inputs, targets = batches.gather(part)
        loss = batches.losses(module(inputs), targets).sum() / len(rows)
        for sum_, gradient in zip(total, torch.autograd.grad(loss, parameters), strict=True):
            sum_ += gradient
    return torch.cat([t.reshape(-1) for t in total]).double().cpu().numpy()


def _blocks(rows: npt.NDArray[Any], size: int = _BATCH) -> Iterator[npt.NDArray[Any]]:
    for low in range(0, len(rows), size):
        yield rows[low : low + size]
