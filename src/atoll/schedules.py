"""Schedules: who trains when, and how models are merged, as a table known before training.

How long things take never depends on the weights, so the whole table is computed first, in NumPy; the engine
only consumes its rows.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from atoll.clustering import Clustering
from atoll.errors import InputError
from atoll.population import Population
from atoll.seeds import generator

Ids = npt.NDArray[np.int64]
Order = Literal["reshuffled", "fixed"]
DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Mix:
    """A model made from others: ``server * (the server's model) + sum of weight * (cluster's published model)``.

    The weights sum to one; a single source of weight one is taken as it is.

    Attributes:
        server: weight of the server's model.
        published: pairs (cluster, weight).
    """

    server: float = 0.0
    published: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuse weights that do not sum to one."""
        total = self.server + sum(weight for _, weight in self.published)
        if abs(total - 1) > 1e-9:
            raise InputError(f"Mix: the weights must sum to one, they sum to {total}")


FROM_SERVER = Mix(server=1.0)


@dataclass(frozen=True, eq=False)
class Event:
    """One row of a schedule: some clusters finish a piece of work, models are merged.

    The active clusters train from their start models and publish their averages; then the server's model is mixed
    anew, if `server` is given; then each cluster in `starts` gets a new start model.

    Attributes:
        index: number of the event, from 0.
        round: round in which it takes place, from 0.
        seconds: virtual time at which it ends.
        active: the clusters that train, ascending.
        began: virtual time at which each active cluster began this work.
        cohort: the clients that train, int64.
        clusters: each cohort client's cluster, int64; None when clients find it by least loss.
        weights: each cohort client's weight relative to the others of its cluster (its samples, n_k).
        intra_rounds: local training and averaging inside the cluster happen this many times (FedUC's T').
        server: the server's new model, or None to leave it.
        starts: (cluster, mix) for each cluster that gets a new start model.
        staleness: inter-cluster aggregations since each active cluster last downloaded.
        models_down: models sent to clients and aggregators.
        models_up: models sent by them.
    """

    index: int
    round: int
    seconds: float
    active: tuple[int, ...]
    began: tuple[float, ...]
    cohort: Ids
    clusters: Ids | None
    weights: npt.NDArray[np.float64]
    intra_rounds: int = 1
    server: Mix | None = None
    starts: tuple[tuple[int, Mix], ...] = ()
    staleness: tuple[int, ...] = ()
    models_down: int = 0
    models_up: int = 0

    @property
    def client_updates(self) -> int:
        """Local trainings that the event takes: one a client and intra-cluster round."""
        return len(self.cohort) * self.intra_rounds


@dataclass(frozen=True, eq=False)
class Schedule:
    """All events of a run, in order.

    Attributes:
        events: the rows.
        clusters: number of clusters.
        rounds: rounds that the events amount to.
        has_server: whether there is a server's model.
        message_bytes: bytes of what is sent where it is not a model (an event's `models_down` and `models_up` then
            count such messages); None where it is.
    """

    events: tuple[Event, ...]
    clusters: int
    rounds: int
    has_server: bool = True
    message_bytes: int | None = None

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.events)

    def rounds_done(self, events_done: int) -> int:
        """Return how many rounds are complete after so many events."""
        return self.events[events_done].round if events_done < len(self) else self.rounds

    def max_updates_per_client_round(self) -> int:
        """Return the most local trainings that any client does in any round (FedCluster's Assumption 1 allows 1)."""
        most = 0
        by_round: dict[int, list[Ids]] = {}
        for event in self.events:
            by_round.setdefault(event.round, []).extend([event.cohort] * event.intra_rounds)
        for cohorts in by_round.values():
            most = max(most, int(np.unique(np.concatenate(cohorts), return_counts=True)[1].max(initial=0)))
        return most


@dataclass(frozen=True, eq=False)
class Clock:
    """How long each client's work takes; clients work side by side, downloads are free.

    Attributes:
        compute_seconds: one local training, [clients].
        upload_seconds: one upload of the model, [clients].
    """

    compute_seconds: npt.NDArray[np.float64]
    upload_seconds: npt.NDArray[np.float64]

    def event_seconds(self, cohort: Ids) -> float:
        """Return the seconds until the slowest of the cohort has uploaded."""
        return float((self.compute_seconds[cohort] + self.upload_seconds[cohort]).max())


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
                clusters=np.full(len(cohort), cluster),
                weights=population.sizes[cohort].astype(float),
                server=Mix(published=((cluster, 1.0),)),
                starts=((following, FROM_SERVER),),
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
                active=tuple(range(clusters)),
                began=(began,) * clusters,
                cohort=cohort,
                clusters=None,
                weights=population.sizes[cohort].astype(float),
                starts=tuple((c, Mix(published=((c, 1.0),))) for c in range(clusters)),
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
