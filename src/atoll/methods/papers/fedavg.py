"""FedAvg, FedProx and SGD on the pooled data."""

from dataclasses import replace

import numpy as np

from atoll.clustering.clustering import one_cluster
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedcluster import fedcluster
from atoll.methods.parts.checking import checked
from atoll.schedules.clock import Clock
from atoll.schedules.packed import pack
from atoll.support.errors import InputError
from atoll.support.limits import Share


@checked
def fedavg(
    population: Population,
    rule: LocalRule,
    rounds: int,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedAvg: FedCluster with one cluster. With ``rule.proximal`` it is FedProx.

    McMahan et al. 2017; Li et al. 2020.

    Args:
        fraction: share of clients in each cohort.
    """
    return fedcluster(population, one_cluster(len(population)), rule, rounds, fraction, "fixed", clock, seed)


def pooled(population: Population) -> Population:
    """Return a population of one client that holds all samples."""
    return population.pooled()


@checked
def centralized(
    population: Population, rule: LocalRule, rounds: int, clock: Clock | None = None, seed: int = 0
) -> Method:
    """SGD on the pooled data: FedAvg with one client that holds all samples and keeps its optimiser state.

    `population` must be pooled (``population.pooled()``); a round is ``rule.steps`` steps. Nothing is uploaded.
    """
    if len(population) != 1:
        raise InputError(f"method.name = 'centralized': needs the pooled population, got {len(population)} clients")
    return unsent(population, replace(rule, carry_moments=True), rounds, 1.0, clock, seed)


def unsent(
    population: Population, rule: LocalRule, rounds: int, fraction: float, clock: Clock | None, seed: int
) -> Method:
    """Return FedAvg whose models are not sent: uploads take no time, and no model counts as traffic."""
    silent = clock and replace(clock, upload_seconds=np.zeros(len(population)))
    method = fedavg(population, rule, rounds, fraction, silent, seed)
    events = pack(replace(event, models_down=0, models_up=0) for event in method.schedule.events)
    return replace(method, schedule=replace(method.schedule, events=events))
