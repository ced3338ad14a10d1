"""What a schedule is: its events, and how they mix models."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from operator import attrgetter
from typing import Any

import numpy as np

from atoll.schedules.packed import pack
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import InputError


@dataclass(frozen=True)
class Mix:
    """A model made from others: ``server * (the server's model) + sum of weight * (cluster's published model)``.

    These weights sum to one; a single source of weight one is copied. To this, `updates` add
    ``sum of weight * (cluster's published model - the model that its clients were sent)``, with any weights.

    Attributes:
        server: weight of the server's model.
        published: pairs (cluster, weight).
        updates: pairs (cluster, weight), of clusters that are active in the event.
    """

    server: float = 0.0
    published: tuple[tuple[int, float], ...] = ()
    updates: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuse weights of models that do not sum to one."""
        total = self.server + sum(weight for _, weight in self.published)
        if abs(total - 1) > 1e-9:
            raise InputError(f"Mix: the weights must sum to one, but they sum to {total}")


FROM_SERVER = Mix(server=1.0)

Merge = tuple[Mix | None, tuple[tuple[int, Mix], ...]]
"""The server's new model, if there is a server, and the new start models."""


@dataclass(frozen=True, eq=False, slots=True)
class Event:
    """One row of a schedule: some clusters finish a piece of work, and models are merged.

    The active clusters train from their start models and publish their averages; then the server's model is mixed
    anew, if `server` is given; then each cluster in `starts` gets a new start model.

    Attributes:
        index: number of the event, from 0.
        round: its round, from 0.
        seconds: virtual time at which it ends.
        active: the clusters that train, ascending.
        began: virtual time at which each active cluster began this work.
        cohort: the clients that train, int64.
        clusters: each cohort client's cluster, int64; None if the run assigns it, by least loss or `State.labels`.
        weights: each cohort client's weight relative to the others of its cluster (its samples, n_k).
        intra_rounds: how often the cluster trains and averages (FedUC's T').
        server: the server's new model; None: unchanged.
        starts: (cluster, mix) for each cluster that gets a new start model.
        staleness: inter-cluster aggregations since each active cluster last downloaded.
        models_down: models sent to clients and aggregators.
        models_up: models sent by them.
        absent: clients that were drawn for the cohort but unavailable when it began.
        dropped: clients that received the model and never answered.
        late: clients whose result came after the deadline.
        regroups: whether clients are assigned to clusters anew after it (`Method.regroup`).
        answered: whose results were combined in each intra-cluster round, [intra_rounds, cohort]; None: all.
        drawn_as: (number, round) that seed the clients' draws if the work began before its event was known.
    """

    index: int
    round: int
    seconds: float
    active: tuple[int, ...]
    began: tuple[float, ...]
    cohort: Ids
    clusters: Ids | None
    weights: Floats
    intra_rounds: int = 1
    server: Mix | None = None
    starts: tuple[tuple[int, Mix], ...] = ()
    staleness: tuple[int, ...] = ()
    models_down: int = 0
    models_up: int = 0
    absent: int = 0
    dropped: int = 0
    late: int = 0
    regroups: bool = False
    answered: Mask | None = None
    drawn_as: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse updates of clusters that do not train in the event, for which the model sent is unknown."""
        for mix in (self.server, *(mix for _, mix in self.starts)):
            if mix and mix.updates and (others := {cluster for cluster, _ in mix.updates}.difference(self.active)):
                told = f"event {self.index}: Mix.updates names cluster {min(others)}"
                raise InputError(f"{told}, which is not active in the event")

    @property
    def client_updates(self) -> int:
        """Local trainings in the event: one per answering client and intra-cluster round."""
        if self.answered is not None:
            return int(self.answered.sum())
        asked = len(self.cohort) * self.intra_rounds
        # Clients that only measure losses are of the cohort, and send no model.
        return asked if self.regroups else min(asked, self.models_up or asked)


def make_event(
    index: int,
    cohort: Ids,
    weights: Floats,
    began: float,
    seconds: float,
    active: tuple[int, ...] = (0,),
    **others: Any,
) -> Event:
    """Return an event of a plain round: clusters train from the server's model, which becomes the mean of theirs.

    Args:
        index: number of the event, and of its round.
        cohort: the clients that train.
        weights: each client's weight relative to the others of its cluster.
        began: virtual time at which the clusters began.
        seconds: virtual time at which they end.
        active: the clusters; with several of them the run assigns clients, unless `clusters` is given.
        others: further fields of the `Event`, which replace what a plain round has.

    >>> make_event(0, np.array([3, 5]), np.array([20.0, 30.0]), began=0.0, seconds=1.5).models_up
    2
    """
    index, active = int(index), tuple(map(int, active))
    plain: dict[str, Any] = {
        "round": index,
        "clusters": np.full(len(cohort), active[0]) if len(active) == 1 else None,
        "server": Mix(published=tuple((cluster, 1 / len(active)) for cluster in active)),
        "starts": tuple((cluster, FROM_SERVER) for cluster in active),
        "staleness": (0,) * len(active),
        **dict.fromkeys(("models_down", "models_up"), len(cohort)),
    }
    clients, shares = np.asarray(cohort, np.int64), np.asarray(weights, float)
    fields = {**plain, "cohort": clients, "weights": shares, "began": (float(began),) * len(active), **others}
    return Event(index=index, seconds=float(seconds), active=active, **fields)


@dataclass(frozen=True, eq=False)
class Schedule:
    """All events of a run, in order.

    Attributes:
        events: the rows; `pack` reduces the memory of many to a tenth.
        clusters: number of clusters.
        rounds: rounds that the events make up.
        has_server: whether there is a server's model.
    """

    events: Sequence[Event]
    clusters: int
    rounds: int
    has_server: bool = True

    def __repr__(self) -> str:
        return f"Schedule({len(self):,} events, {self.rounds:,} rounds, {self.clusters:,} clusters)"

    def __len__(self) -> int:
        return len(self.events)

    def until(self, seconds: float = math.inf, client_updates: float = math.inf) -> "Schedule":
        """Return the schedule of the events that are over by this virtual time, with at most so many client updates.

        Raises:
            InputError: there are none.
        """
        count, first = bisect_right(self.events, seconds, key=attrgetter("seconds")), self.events[0]
        if not count:
            raise InputError(f"run.virtual_seconds = {seconds:g}: the first event ends after {first.seconds:g} s")
        if client_updates < math.inf:
            done = list(accumulate(event.client_updates for event in islice(self.events, count)))
            count = bisect_right(done, client_updates)
        if not count:
            raise InputError(f"run.client_updates = {client_updates}: the first event has {first.client_updates}")
        return replace(self, events=pack(islice(self.events, count)), rounds=self.rounds_done(count))

    @property
    def occupied(self) -> "Schedule":
        """The schedule of the events that have clients; itself if all or none have."""
        events = pack(event for event in self.events if len(event.cohort))
        return replace(self, events=events) if 0 < len(events) < len(self) else self

    @cached_property
    def ready_after(self) -> Ids:
        """For each event, how many events must be over before its clusters have their start models, [events].

        This is one more than the last event before it that gives one of its clusters a new start, or regroups.
        """
        given: dict[int, int] = {}
        ready = np.zeros(len(self), np.int64)
        for position, event in enumerate(self.events):
            ready[position] = max((given.get(cluster, 0) for cluster in event.active), default=0)
            given |= {cluster: position + 1 for cluster, _ in event.starts}
            if event.regroups:
                given = dict.fromkeys(range(self.clusters), position + 1)
        return ready

    def ready(self, events_done: int, apart: bool = False) -> tuple[Event, ...]:
        """Return the next events that can train together after this many events; none at the schedule's end.

        With `apart` no client is in two of them: for clients that keep a state from one task to the next.
        """
        end = events_done
        seen: set[int] = set()
        while end < len(self) and self.ready_after[end] <= events_done:  # a full scan each time would be slow
            if apart:
                cohort = self.events[end].cohort.tolist()
                if not seen.isdisjoint(cohort):
                    break
                seen.update(cohort)
            end += 1
        return tuple(self.events[events_done:end])

    @cached_property
    def frequencies(self) -> Floats:
        """Each cluster's share of all pieces of work in the schedule, [clusters]."""
        works = np.bincount([c for event in self.events for c in event.active], minlength=self.clusters)
        return np.asarray(works / works.sum())

    def rounds_done(self, events_done: int) -> int:
        """Return how many rounds are complete after this many events."""
        return self.events[events_done].round if events_done < len(self) else self.rounds

    def last_round(self, events_done: int) -> int:
        """Return the round of the last event that is over; 0 before the first."""
        return self.events[events_done - 1].round if events_done else 0

    def max_updates_per_client_round(self) -> int:
        """Return the most local trainings that any client does in any round (FedCluster's Assumption 1 allows 1)."""
        by_round: dict[int, list[Ids]] = {}
        for event in self.events:
            by_round.setdefault(event.round, []).extend([event.cohort] * event.intra_rounds)
        counts = (np.unique(np.concatenate(cohorts), return_counts=True)[1] for cohorts in by_round.values())
        return max((int(each.max(initial=0)) for each in counts), default=0)
