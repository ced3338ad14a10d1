"""Building blocks of schedules: cohorts, times of day, and clusters' work with its events."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atoll.schedules.events import Event, Merge
from atoll.support.arrays import Floats, Ids

DAY_SECONDS = 86_400.0


def cohort_size(fraction: float, members: int) -> int:
    """Return ``round(fraction * members)``, at least 1.

    >>> cohort_size(0.1, 100), cohort_size(0.1, 3)
    (10, 1)
    """
    return max(1, round(fraction * members))


def next_time_of_day(now_seconds: float, hour: float) -> float:
    """Return the first virtual time from now on at which the time of day is `hour`; time 0 is midnight UTC."""
    today = hour * 3600
    return today + DAY_SECONDS * max(0, -((today - now_seconds) // DAY_SECONDS))


def draw_cohort(members: Ids, size: int, rng: np.random.Generator) -> Ids:
    """Return `size` of the members, ascending, drawn without replacement; nothing is drawn if all take part."""
    if size == len(members):
        return members
    return np.sort(members[rng.choice(len(members), size, replace=False)])


@dataclass(frozen=True, eq=False)
class Work:
    """The work of some clusters for one event.

    Attributes:
        active: the clusters, ascending.
        weights: each client's samples.
        seconds: its virtual duration.
        models_sent: models that aggregators send for it.
        late: clients that are too slow for the deadline, and therefore not in the cohort.
    """

    active: tuple[int, ...]
    cohort: Ids
    clusters: Ids
    weights: Floats
    seconds: float
    models_sent: int
    late: int


@dataclass(frozen=True, eq=False)
class PhaseWork:
    """A phase's works and merges: of all clusters together (synchronous, key 0), or of each.

    An empty cluster has no work, but a merge, since its work may have been under way when it lost its clients. `begun`
    returns a work as it is if it begins at a virtual time, for speeds that change.
    """

    works: Mapping[int, Work]
    merges: Sequence[Merge]
    begun: Callable[[Work, float], Work] = lambda work, now: work


@dataclass(frozen=True, eq=False)
class Finished:
    """Finished work, and how its models are merged.

    Attributes:
        merge: that of the phase in force when it ended.
        began: virtual time at which it began.
        seconds: virtual time at which it ended.
    """

    work: Work
    merge: Merge
    began: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Makes rows of the schedule from clusters' work.

    Attributes:
        in_force: for each event the phase by which it merges, and by which work before it begins.
        rounds_per_event: rounds (T'T'') that an event takes.
        intra_rounds: T'.
    """

    in_force: Sequence[PhaseWork]
    rounds_per_event: int
    intra_rounds: int

    def beginning(self, index: int, idle: set[int]) -> list[tuple[int, Work]]:
        """Return the work that idle clusters with clients begin right before an event."""
        works = self.in_force[index].works
        return [(cluster, works[cluster]) for cluster in sorted(idle & works.keys())]

    def end(self, index: int, cluster: int, work: Work, began: float, seconds: float) -> Finished:
        """Return a cluster's work as finished with this event."""
        return Finished(work, self.in_force[index].merges[cluster], began, seconds)

    def event(self, index: int, done: Finished, downloaded: Ids) -> Event:
        """Return the row of finished work; update `downloaded`, the event that gave each cluster its start."""
        work, (server, starts) = done.work, done.merge
        models = len(work.cohort) * self.intra_rounds + work.models_sent
        event = Event(
            index=index,
            round=index * self.rounds_per_event,
            seconds=done.seconds,
            active=work.active,
            began=(done.began,) * len(work.active),
            cohort=work.cohort,
            clusters=work.clusters,
            weights=work.weights,
            intra_rounds=self.intra_rounds,
            server=server,
            starts=starts,
            staleness=tuple((index - 1 - downloaded[list(work.active)]).tolist()),
            models_down=models + work.late * self.intra_rounds,
            models_up=models,
            late=work.late,
        )
        downloaded[[cluster for cluster, _ in starts]] = index
        return event
