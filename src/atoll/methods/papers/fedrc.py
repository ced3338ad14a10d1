"""FedRC: a mixture of models that ignores which labels a client has (Guo et al. 2024)."""

from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedem import fedem
from atoll.methods.parts.checking import checked
from atoll.schedules.events import Clock
from atoll.support.errors import InputError
from atoll.support.limits import Positive, Share

if TYPE_CHECKING:
    from torch import nn


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
    mean something else are apart. In the place of FedEM's exp(-l) is ``I(x, y; theta_k) = exp(-l(theta_k; x, y)) /
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
