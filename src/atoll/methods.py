"""The methods, each in a few lines: a schedule, a local rule, an identity and a combine rule."""

from collections.abc import Callable
from dataclasses import replace

from atoll.clustering import Clustering, one_cluster
from atoll.engine import Method
from atoll.errors import InputError
from atoll.local import LocalRule
from atoll.population import Population
from atoll.schedules import Clock, Order, cycling


def fedcluster(
    population: Population,
    clustering: Clustering,
    rule: LocalRule,
    rounds: int,
    fraction: float = 0.1,
    order: Order = "reshuffled",
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedCluster: clusters take turns, so the server's model moves M times a round at the same cost.

    Chen et al. 2020, Algorithm 1. For rounds j, for cycles K in the order sigma_j: the cycle's cohort starts from
    the server's model W, trains, and ``W <- sum_k p_k w_k / sum_k p_k``.
    """
    return Method(cycling(population, clustering, rounds, fraction, order, clock, seed), rule)


def fedavg(
    population: Population,
    rule: LocalRule,
    rounds: int,
    fraction: float = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedAvg: FedCluster with one cluster. With ``rule.proximal`` it is FedProx.

    McMahan et al. 2017; Li et al. 2020.
    """
    clustering = one_cluster(len(population))
    return fedcluster(population, clustering, rule, rounds, fraction, "fixed", clock, seed)


def centralized(
    population: Population, rule: LocalRule, rounds: int, clock: Clock | None = None, seed: int = 0
) -> Method:
    """SGD on the pooled data: FedAvg with one client that holds everything and keeps its optimiser's state.

    `population` must be pooled (``population.pooled()``); a round is ``rule.steps`` steps.
    """
    if len(population) != 1:
        raise InputError(f"method.name = 'centralized': needs the pooled population, got {len(population)} clients")
    method = fedavg(population, replace(rule, carry=True), rounds, 1.0, clock, seed)
    events = tuple(replace(event, models_down=0, models_up=0) for event in method.schedule.events)
    return replace(method, schedule=replace(method.schedule, events=events))


METHODS: dict[str, Callable[..., Method]] = {"fedcluster": fedcluster, "fedavg": fedavg, "centralized": centralized}
