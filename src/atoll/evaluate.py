"""Evaluation: losses and accuracies of a model, and how different the clients' and clusters' gradients are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from atoll.clustering import Clustering
from atoll.local import Batches, Model, load_model
from atoll.population import Population
from atoll.seeds import generator
from atoll.threads import one_thread

_BATCH = 1000

Floats = npt.NDArray[np.float64]


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

    def __init__(self, population: Population, module: nn.Module, samples: int | None = None, seed: int = 0) -> None:
        """Count how often each pool sample is held."""
        data = population.data
        self.module = module
        self.classifies = data.classes > 0
        self.pool = Batches(data, module)
        self.tests = Batches(data.test, module)
        held = population.indices
        if samples is not None and samples < len(held):
            held = held[np.sort(generator(seed, "evaluate").choice(len(held), samples, replace=False))]
        self.samples = len(held)
        counts = np.bincount(held, minlength=len(data))
        self.rows = np.flatnonzero(counts)
        self.weights = counts[self.rows] / len(held)

    @one_thread()
    @torch.no_grad()
    def score(self, model: Model) -> Score:
        """Return the model's losses and accuracy."""
        load_model(self.module, model)
        self.module.eval()
        train_losses, _ = self._measure(self.pool, self.rows)
        test_losses, hits = self._measure(self.tests, np.arange(len(self.tests)))
        accuracy = float(hits.mean()) if self.classifies else None
        return Score(float(train_losses @ self.weights), float(test_losses.mean()), accuracy)

    def _measure(self, batches: Batches, rows: npt.NDArray[np.int64]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the loss of each of these samples, and whether it is classified rightly."""
        losses, hits = [], []
        for part in _blocks(rows):
            inputs, targets = batches.gather(part)
            outputs = self.module(inputs)
            losses.append(batches.losses(outputs, targets).double())
            if self.classifies:
                hits.append(outputs.argmax(dim=1) == targets)
        return torch.cat(losses).cpu().numpy(), torch.cat(hits).cpu().numpy() if hits else np.empty(0, bool)


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


def _blocks(rows: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    for low in range(0, len(rows), _BATCH):
        yield rows[low : low + _BATCH]
