"""FedCluster: clusters take turns, giving M server updates per round at the same cost (Chen et al. 2020)."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.schedules.clock import Clock
from atoll.schedules.events import FROM_SERVER, Event, Mix, Schedule, make_event
from atoll.schedules.packed import pack
from atoll.schedules.timeline import cohort_size, draw_cohort, next_time_of_day
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.limits import Share
from atoll.support.seeds import generator

Order = Literal["reshuffled", "fixed"]


@checked
def fedcluster(
    population: Population,
    clustering: Clustering,
    rule: LocalRule,
    rounds: int,
    fraction: Share = 0.1,
    order: Order = "reshuffled",
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedCluster: clusters take turns, giving M server updates per round at the same cost.

    Chen et al. 2020, Algorithm 1. In each round j, for cycles K in the order sigma_j, the cycle's cohort starts from
    the server's model W, trains, and ``W <- sum_k p_k w_k / sum_k p_k``.

    Args:
        clustering: their clusters, none empty.
        rounds: number of rounds, with one cycle per cluster in each.
        fraction: share of a cluster's clients in each cohort.
        order: order of the cycles, reshuffled in every round or fixed.
        clock: clients' training and upload times; None: every cycle takes one second.
        seed: seed for drawing orders and cohorts.
    """
    return Method(cycling(population, clustering, rounds, fraction, order, clock, seed), rule, clock=clock)


@checked
def cycling(
    population: Population,
    clustering: Clustering,
    rounds: int,
    fraction: Share = 1.0,
    order: Order = "reshuffled",
    clock: Clock | None = None,
    seed: int = 0,
) -> Schedule:
    """Return a schedule in which clusters take turns, and the server adopts each mean (FedCluster, Algorithm 1).

    In round j the cycles follow the permutation sigma_j: redrawn every round (`reshuffled`, as Theorem 1
    assumes) or ascending (`fixed`). A cycle's cohort is ``cohort_size(fraction, cluster size)`` clients drawn without
    replacement. If the clustering has times of day, a cycle begins at its cluster's next such time, so that the
    schedule spans simulated days. Without a clock every cycle takes one second. With one cluster this is FedAvg.
    """
    if (empty := np.flatnonzero(clustering.sizes == 0)).size:
        raise InputError(f"clustering: cluster {empty[0]} has no clients; lower clustering.clusters")
    turns = [int(c) for j in range(rounds) for c in _turn(clustering.clusters, order, seed, j)]
    everyone = range(clustering.clusters)
    merges = [Mix(published=((c, 1.0),)) for c in everyone]  # one object for all events: a schedule may have a million
    starts = [((c, FROM_SERVER),) for c in everyone]
    ids = [np.full(cohort_size(fraction, int(size)), c) for c, size in enumerate(clustering.sizes)]

    def cycles() -> Iterator[Event]:
        now = 0.0
        for index, cluster in enumerate(turns):
            members = clustering.members(cluster)
            cohort = draw_cohort(members, cohort_size(fraction, len(members)), generator(seed, "cohort", index))
            began = now if clustering.hours is None else next_time_of_day(now, clustering.hours[cluster])
            now = began + (clock.event_seconds(cohort, began) if clock else 1.0)
            following = turns[index + 1] if index + 1 < len(turns) else cluster
            yield make_event(
                index,
                cohort,
                population.sizes[cohort].astype(float),
                began,
                now,
                (cluster,),
                round=index // clustering.clusters,
                clusters=ids[cluster],
                server=merges[cluster],
                starts=starts[following],
            )

    return Schedule(pack(cycles()), clustering.clusters, rounds)


def _turn(clusters: int, order: Order, seed: int, round_: int) -> Ids:
    if order == "fixed":
        return np.arange(clusters)
    return generator(seed, "order", round_).permutation(clusters)
