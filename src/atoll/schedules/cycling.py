"""Schedules in which clusters take turns, and those in which one cohort of all clients trains every round."""

from typing import Literal

import numpy as np

from atoll.clustering import Clustering
from atoll.errors import InputError
from atoll.population import Population
from atoll.schedules.base import FROM_SERVER, Clock, Event, Ids, Mix, Schedule
from atoll.seeds import generator

Order = Literal["reshuffled", "fixed"]
DAY_SECONDS = 86_400.0


def cohort_size(fraction: float, members: int) -> int:
    """Return ``round(fraction * members)``, at least 1.

    >>> cohort_size(0.1, 100), cohort_size(0.1, 3)
    (10, 1)
    """
    return max(1, round(fraction * members))


def cycling(
    population: Population,
    clustering: Clustering,
    rounds: int,
    fraction: float = 1.0,
    order: Order = "reshuffled",
    clock: Clock | None = None,
    seed: int = 0,
) -> Schedule:
    """Clusters take turns; after each turn the server takes the cluster's mean (FedCluster, Algorithm 1).

    In round j the cycles follow the permutation sigma_j: drawn anew every round (`reshuffled`, what Theorem 1
    assumes) or ascending (`fixed`). A cycle's cohort is ``cohort_size(fraction, cluster size)`` clients drawn without
    replacement. Where the clustering gives times of day, a cycle begins at the next such time of its cluster, so
    that the schedule spans simulated days. Without a clock every cycle takes one second. One cluster makes it FedAvg.
    """
    _check(rounds, fraction)
    if order not in ("reshuffled", "fixed"):
        raise InputError(f"method.order = {order!r}: must be 'reshuffled' or 'fixed'")
    if (empty := np.flatnonzero(clustering.sizes == 0)).size:
        raise InputError(f"clustering: cluster {empty[0]} has no clients; lower clustering.clusters")
    turns = [int(c) for j in range(rounds) for c in _turn(clustering.clusters, order, seed, j)]
    everyone = range(clustering.clusters)
    merges = [Mix(published=((c, 1.0),)) for c in everyone]  # one object for all events: a schedule may have a million
    starts = [((c, FROM_SERVER),) for c in everyone]
    ids = [np.full(cohort_size(fraction, int(size)), c) for c, size in enumerate(clustering.sizes)]
    events = []
    now = 0.0
    for index, cluster in enumerate(turns):
        members = clustering.members(cluster)
        cohort = _draw_cohort(members, cohort_size(fraction, len(members)), generator(seed, "cohort", index))
        began = now if clustering.hours is None else next_time_of_day(now, clustering.hours[cluster])
        now = began + (clock.event_seconds(cohort) if clock else 1.0)
        following = turns[index + 1] if index + 1 < len(turns) else cluster
        events.append(
            Event(
                index=index,
                round=index // clustering.clusters,
                seconds=now,
                active=(cluster,),
                began=(began,),
                cohort=cohort,
                clusters=ids[cluster],
                weights=population.sizes[cohort].astype(float),
                server=merges[cluster],
                starts=starts[following],
                staleness=(0,),
                models_down=len(cohort),
                models_up=len(cohort),
            )
        )
    return Schedule(tuple(events), clustering.clusters, rounds)


def all_together(
    population: Population,
    clusters: int,
    rounds: int,
    fraction: float = 1.0,
    clock: Clock | None = None,
    seed: int = 0,
) -> Schedule:
    """Every round one cohort, drawn from all clients, trains; clients find their cluster then (IFCA, CFL-MGD).

    Each client is sent all clusters' models and returns one. Clusters are never merged, and there is no server's
    model. The cohort is ``cohort_size(fraction, clients)`` clients drawn without replacement.
    """
    _check(rounds, fraction)
    if clusters < 1:
        raise InputError(f"method.clusters = {clusters}: must be at least 1")
    everyone = np.arange(len(population))
    active = tuple(range(clusters))
    starts = tuple((c, Mix(published=((c, 1.0),))) for c in active)  # one object for all events
    events = []
    now = 0.0
    for index in range(rounds):
        cohort = _draw_cohort(everyone, cohort_size(fraction, len(everyone)), generator(seed, "cohort", index))
        began, now = now, now + (clock.event_seconds(cohort) if clock else 1.0)
        events.append(
            Event(
                index=index,
                round=index,
                seconds=now,
                active=active,
                began=(began,) * clusters,
                cohort=cohort,
                clusters=None,
                weights=population.sizes[cohort].astype(float),
                starts=starts,
                staleness=(0,) * clusters,
                models_down=len(cohort) * clusters,
                models_up=len(cohort),
            )
        )
    return Schedule(tuple(events), clusters, rounds, has_server=False)


def next_time_of_day(now_seconds: float, hour: float) -> float:
    """Return the first virtual time, not before now, at which the time of day is `hour`; time 0 is midnight UTC.

    >>> next_time_of_day(0.0, 6.0), next_time_of_day(7 * 3600.0, 6.0)
    (21600.0, 108000.0)
    """
    wanted = hour * 3600
    return wanted + DAY_SECONDS * max(0, -((wanted - now_seconds) // DAY_SECONDS))


def _check(rounds: int, fraction: float) -> None:
    if rounds < 1:
        raise InputError(f"rounds = {rounds}: must be at least 1")
    if not 0 < fraction <= 1:
        raise InputError(f"method.fraction = {fraction}: must be greater than 0 and at most 1")


def _turn(clusters: int, order: Order, seed: int, round_: int) -> Ids:
    if order == "fixed":
        return np.arange(clusters)
    return generator(seed, "order", round_).permutation(clusters)


def _draw_cohort(members: Ids, size: int, rng: np.random.Generator) -> Ids:
    if size == len(members):
        return members
    return np.sort(members[rng.choice(len(members), size, replace=False)])
