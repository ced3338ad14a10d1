"""FedAvg, FedProx and SGD on the pooled data."""

from dataclasses import replace

from atoll.clustering.clustering import one_cluster
from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule
from atoll.methods.fedcluster import fedcluster
from atoll.schedules.events import Clock
from atoll.support.errors import InputError


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
    method = fedavg(population, replace(rule, carry_moments=True), rounds, 1.0, clock, seed)
    events = tuple(replace(event, models_down=0, models_up=0) for event in method.schedule.events)
    return replace(method, schedule=replace(method.schedule, events=events))
