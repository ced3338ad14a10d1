"""FedEM and FedRC: clients mix the predictions of several common models, each in its own shares."""

from dataclasses import replace
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.staying import keep_at_clients
from atoll.methods.parts.together import require_components
from atoll.schedules.clock import Clock
from atoll.support.errors import InputError
from atoll.support.limits import Positive, Share

if TYPE_CHECKING:
    from torch import nn


@checked
def fedem(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    clusters: Positive = 3,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedEM: expectation-maximisation of K models, of which each client's distribution is a mixture.

    Marfoq et al. 2021, "Federated multi-task learning under a mixture of distributions", Algorithm 1. A client
    receives all theta_k. With l the loss, the E-step is ``q(z_i = k) ~ pi_k * exp(-l(theta_k; x_i, y_i))`` for each of
    its samples; the M-step sets ``pi_k = mean of q(z_i = k)``, and trains every theta_k by the local rule on the loss
    weighted by q. The server takes the mean of each theta_k by samples. A client predicts ``sum_k pi_k p(y | x,
    theta_k)``; its pi never leaves it, and starts uniform. K models are communicated, and a round takes K times the
    computation. With K = 1 it is FedAvg.

    Args:
        module: the K models, as `mixture` makes them.
        clusters: number of models, K.

    Raises:
        InputError: more models than clients, or the module is not a mixture of so many.
    """
    from atoll.methods.parts.mixture import CLASSES, SHARES, MixtureTrainer  # late: reading settings needs no PyTorch

    require_components(module, clusters, len(population))
    method = fedavg(population, rule, rounds, fraction, clock and clock.slower(clusters), seed)
    name = "fedrc" if CLASSES in dict(module.named_buffers()) else "fedem"
    return keep_at_clients(replace(method, trainer=MixtureTrainer), (SHARES,), module, f"method.name = {name!r}")


@checked
def fedrc(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    clusters: Positive = 3,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedRC: FedEM whose likelihoods are divided by how common a label is in each cluster.

    Guo, Tang and Lin 2024, "FedRC: tackling diverse distribution shifts challenge in federated learning by robust
    clustering", Algorithm 1. So clients that differ in labels or inputs share clusters, and only those whose labels
    mean something else are apart. FedEM's exp(-l) is replaced by ``I(x, y; theta_k) = exp(-l(theta_k; x, y)) /
    C_{y,k}``, where ``C_{y,k} = sum of gamma_ijk over samples with y_ij = y / sum of gamma_ijk`` is a mean by samples
    over the clients of the previous round, uniform at first, at least 1e-8. It is communicated with the models.

    Args:
        module: the K models, as `mixture_by_class` makes them.
        clusters: number of models, K.

    Raises:
        InputError: more models than clients, or the module is not a mixture of so many by class.
    """
    method = fedem(population, rule, rounds, module, clusters, fraction, clock, seed)
    if not hasattr(module, "classes_of"):
        raise InputError("module: must know the classes, as atoll.mixture_by_class makes it")
    return method
