"""Constants of FedUC's bound, estimated without training: deviations, L, mu and the initial gap."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from atoll.data.population import Population
from atoll.evaluation.gradients import client_gradient
from atoll.evaluation.scores import Evaluator
from atoll.local.batches import Batches
from atoll.local.models import Model
from atoll.local.weights import load_model, trained_of
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.process import one_thread

LEAST_MU = 1e-3
_HELD_BYTES = 2**30  # of gradients kept at a time while inner products are computed


def label_deviations(class_counts: npt.NDArray[np.integer], gram: Floats | None = None) -> Floats:
    """Return the clients' deviations, `Problem.deviations`, estimated from their class shares.

    A client's gradient is assumed to be the mean of the classes' gradients, weighted by its class shares.

    `class_counts` are [clients, classes], and `gram` the inner products of the classes' mean gradients, as from
    `class_gradient_gram`; None: the unit matrix, so that xi_j is the squared distance of class shares.
    """
    sizes = class_counts.sum(axis=1)
    if (sizes <= 0).any():
        raise InputError(f"class counts of client {int(np.argmin(sizes))} sum to {sizes.min()}: must be positive")
    differences = class_counts / sizes[:, None] - class_counts.sum(axis=0) / sizes.sum()
    if gram is None:
        return np.asarray(differences)
    return np.asarray(differences @ _factor(gram, float(np.abs(gram).max())))


@one_thread()
def class_gradient_gram(
    population: Population, module: nn.Module, model: Model, samples: int, rng: np.random.Generator
) -> Floats:
    """Return the inner products of the classes' mean gradients at a model, [classes, classes].

    For regression the planted groups take the place of classes, as in `Population.class_counts`. A class without
    samples has gradient 0; of others at most so many `samples` are drawn, without replacement.
    """
    data, held = population.data, np.asarray(population.indices)
    labels = data.labels_of(held) if data.classes else data.groups_of(held)
    rows = []
    for label in range(data.classes or int(data.groups_of(np.arange(len(data))).max()) + 1):
        own = held[np.flatnonzero(labels == label)]
        rows.append(rng.choice(own, samples, replace=False) if len(own) > samples else own)
    return _gram_at(population, module, model, rows)


@one_thread()
def gradient_deviations(population: Population, module: nn.Module, models: Sequence[Model]) -> Floats:
    """Return the clients' deviations, `Problem.deviations`, from full gradients, [clients, at most clients].

    The rows have the inner products of ``grad f_i - grad F``, with grad F the mean weighted by samples. A problem
    holds the deviations at one model: of several, such as those of a warm-up, the one with the largest weighted
    mean of ``||grad f_i - grad F||^2`` over all clients; a cluster's xi_j there may be below its own maximum.

    Computes one full gradient per client and model if all of them fit into 1 GiB; otherwise each is computed again
    for every further GiB. Other memory is that of a few clients-by-clients matrices.
    """
    rows = [population.samples(client) for client in range(len(population))]
    shares = population.shares
    largest, chosen, scale = -1.0, np.empty((0, 0)), 0.0
    for model in models:
        gram = _gram_at(population, module, model, rows)
        # Inner products of g_i - g with g the weighted mean: the Gram matrix, centred on both sides.
        toward = gram @ shares
        centred = gram - toward[:, None] - toward[None, :] + shares @ toward
        if (spread := float(shares @ centred.diagonal())) > largest:
            largest, chosen, scale = spread, centred, float(np.abs(gram).max())
    return _factor(chosen, scale)


@dataclass(frozen=True, eq=False)
class GradientChange:
    """How each client's gradient differs between two models w and w'.

    Attributes:
        ratios: ``||grad f_i(w) - grad f_i(w')|| / ||w - w'||``, [clients].
        curvatures: ``<grad f_i(w) - grad f_i(w'), w - w'> / ||w - w'||^2``, [clients].
        shares: share of all samples that each client holds, [clients].
    """

    ratios: Floats
    curvatures: Floats
    shares: Floats


@one_thread()
def gradient_change(population: Population, module: nn.Module, first: Model, second: Model) -> GradientChange:
    """Measure how the clients' full gradients change from one model to another; computes two gradients per client."""
    start, stop = _parameters(module, first), _parameters(module, second)
    step = stop - start
    squared = float(step @ step)
    if squared == 0:
        raise InputError("the two models have the same parameters: they must differ to show how gradients change")
    batches = Batches(population.data, module)
    ratios, curvatures = np.empty(len(population)), np.empty(len(population))
    module.eval()
    for client in range(len(population)):
        ends = []
        for model in (first, second):
            load_model(module, model)
            ends.append(client_gradient(module, batches, population.samples(client)))
        change = ends[1] - ends[0]
        ratios[client] = np.sqrt(change @ change / squared)
        curvatures[client] = change @ step / squared
    return GradientChange(ratios, curvatures, population.shares)


def estimate_smoothness(change: GradientChange) -> float:
    """Return L as the clients' mean ratio, weighted by samples (Wang et al. 2019, cited by FedUC).

    A ratio never exceeds its client's constant, so the estimate never exceeds the mean of the constants.
    """
    return float(change.shares @ change.ratios)


def estimate_mu(change: GradientChange) -> float:
    """Return mu as the least positive curvature of any client, but at least `LEAST_MU`.

    A loss that is not convex has no mu, and its curvature may be negative for all clients; the bound is then defined
    by `LEAST_MU`.
    """
    positive = change.curvatures[change.curvatures > 0]
    return max(float(positive.min()), LEAST_MU) if len(positive) else LEAST_MU


def initial_gap(
    population: Population, module: nn.Module, model: Model, samples: int | None = None, seed: int = 0
) -> float:
    """Return F(w0) - F* with F* = 0; F is the mean loss over all samples, or over a seeded draw of `samples`."""
    loss = Evaluator(population, module, samples, seed).train_loss(model)
    if not 0 <= loss < np.inf:
        raise InputError(f"F* = 0: must be at most the loss of the initial model, {loss:g}")
    return loss


def _parameters(module: nn.Module, model: Model) -> Floats:
    """Return a model's trained parameters in one float64 vector."""
    return torch.cat([model[name].detach().reshape(-1).double().cpu() for name in trained_of(module)]).numpy()


def _gram_at(population: Population, module: nn.Module, model: Model, rows: Sequence[npt.NDArray[np.int32]]) -> Floats:
    """Return the inner products of the gradients of the mean loss over each of these sets of pool samples.

    One block of the gradients is kept at a time.
    """
    load_model(module, model)
    module.eval()
    batches = Batches(population.data, module)
    parameters = sum(each.numel() for each in trained_of(module).values())

    def gradient(number: int) -> Floats:
        own = rows[number]
        return client_gradient(module, batches, own) if len(own) else np.zeros(parameters)

    count = len(rows)
    gram = np.empty((count, count))
    held = max(1, min(count, _HELD_BYTES // (8 * parameters)))
    block = np.empty((held, parameters))
    for low in range(0, count, held):
        high = min(low + held, count)
        for number in range(low, high):
            block[number - low] = gradient(number)
        own = block[: high - low]
        gram[low:high, low:high] = own @ own.T
        for number in range(high, count):
            gram[low:high, number] = gram[number, low:high] = own @ gradient(number)
    return gram


def _factor(gram: Floats, scale: float) -> Floats:
    """Return rows with these inner products, [n, at least 1]; eigenvalues below rounding of `scale` count as 0."""
    values, vectors = np.linalg.eigh(gram)
    kept = max(1, int((values > scale * len(gram) * np.finfo(np.float64).eps).sum()))
    return np.asarray(vectors[:, -kept:] * np.sqrt(np.maximum(values[-kept:], 0)))
