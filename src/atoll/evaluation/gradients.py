"""How different the clients' and clusters' gradients are."""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.evaluation.scores import blocks
from atoll.local.batches import Batches
from atoll.local.models import Model
from atoll.local.precision import products_in
from atoll.local.weights import load_model, trained_of
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.process import one_thread
from atoll.support.requiring import require


@dataclass(frozen=True)
class Heterogeneity:
    """How far the gradients of clients and of clusters are from the population's, at one model.

    Attributes:
        device: sum over clients of p_k * ||grad f_k - grad f||^2.
        cluster: sum over clusters of q_K * ||grad f_K - grad f||^2; never larger than `device`.
    """

    device: float
    cluster: float


@one_thread()
def heterogeneity(population: Population, clustering: Clustering, module: nn.Module, model: Model) -> Heterogeneity:
    """Measure H_device and H_cluster at a model (FedCluster, eq. 2, whose supremum over models cannot be computed).

    Computes one full gradient per client, and keeps one per cluster. Clients without a cluster count in neither.
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
    squares, sums = 0.0, dict[int, Floats]()
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
    """Return the gradient of the mean loss over these pool samples, all trained parameters in one float64 vector."""
    parameters = [*trained_of(module).values()]
    total = [torch.zeros_like(p) for p in parameters]
    recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())  # cuDNN's have none in evaluation
    with products_in("float32"), torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext():
        for part in blocks(rows):
            inputs, targets = batches.gather(part)
            loss = batches.losses(module(inputs), targets).sum() / len(rows)
            found = torch.autograd.grad(loss, parameters, materialize_grads=True)  # zero where a parameter is not used
            for sum_, gradient in zip(total, found, strict=True):
                sum_ += gradient
    return torch.cat([t.reshape(-1) for t in total]).double().cpu().numpy()
