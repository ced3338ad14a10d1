"""The privacy cost of a schedule to each client, known before training."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from atoll.privacy.accounting import epsilon_of, most_releases
from atoll.privacy.mechanism import Cost
from atoll.schedules.events import Event, Schedule
from atoll.support.arrays import Floats, Ids

POINTS = 24  # maximum number of rounds at which epsilon is computed


@dataclass(frozen=True, eq=False)
class Plan:
    """A schedule, with the cost of each release in it.

    A client pays for the releases that its own data enter, in whatever cluster. Releases of others' data reveal nothing
    about it, and merging released models costs nothing more. So disjoint fixed clusters compose in parallel, and a
    client that changes its cluster continues to pay. If clients choose their cluster, each may be in any.

    Attributes:
        cost: of one release, to each client of its cohort.
        delta: the delta for which epsilon holds.
    """

    schedule: Schedule
    clients: int
    cost: Cost
    delta: float

    @cached_property
    def releases(self) -> Ids:
        """The number of releases that each client takes part in, [clients]."""
        return self._counted[0]

    @cached_property
    def worst_after(self) -> Ids:
        """The largest number of releases of any client after each number of events, [events + 1]."""
        return self._counted[1]

    @cached_property
    def _counted(self) -> tuple[Ids, Ids]:
        counts, worst = np.zeros(self.clients, np.int64), [0]
        for event in self.schedule.events:
            count(counts, event)
            worst.append(max(worst[-1], int(counts[event.cohort].max(initial=0))))
        return counts, np.array(worst)

    @property
    def worst_client(self) -> int:
        """The client that spends most; the first on ties."""
        return int(self.releases.argmax())

    def epsilon(self, releases: int) -> float:
        """Return the cost of this number of releases to a client that takes part in all of them."""
        return epsilon_of(self.cost, releases, self.delta)

    def epsilon_after(self, events_done: int) -> float:
        """Return what the worst client has spent after this number of events."""
        return self.epsilon(int(self.worst_after[events_done]))

    def most_releases(self, epsilon: float) -> int:
        """Return how many of these releases a client can take part in within epsilon."""
        return most_releases(self.cost, self.delta, epsilon, int(self.worst_after[-1]))

    def within(self, most: int) -> int:
        """Return how many events can take place before some client takes part in more than `most` releases."""
        return int(np.searchsorted(self.worst_after, most, side="right")) - 1

    def of_clusters(self) -> Floats:
        """Return the total cost to each cluster's worst client, [clusters]; 0 if the cluster never trains."""
        return self._spent(self.releases)

    def table(self) -> list[dict[str, int | float | None]]:
        """Return what each cluster's clients will spend, one row per cluster, as JSON values."""
        rows = enumerate(zip(self.members, self.of_clusters().tolist(), strict=True))
        return [
            {
                "cluster": cluster,
                "clients": len(own),
                "releases": int(self.releases[own].max(initial=0)),
                "epsilon": finite(epsilon),
            }
            for cluster, (own, epsilon) in rows
        ]

    def over_rounds(self) -> tuple[Ids, Floats]:
        """Return evenly spaced rounds, and what each cluster's worst client has spent by then, [points, clusters]."""
        after = [(self.schedule.rounds_done(events), events) for events in range(1, len(self.schedule) + 1)]
        ends = [pair for earlier, pair in pairwise([(0, 0), *after]) if pair[0] > earlier[0]]  # complete a round
        picked = sorted({round(place) for place in np.linspace(0, len(ends) - 1, min(len(ends), POINTS))})
        wanted = {ends[place][1]: ends[place][0] for place in picked}
        rounds, epsilons = [0], [np.zeros(self.schedule.clusters)]
        counts = np.zeros(self.clients, np.int64)
        for done, event in enumerate(self.schedule.events, 1):
            count(counts, event)
            if done in wanted:
                rounds.append(wanted[done])
                epsilons.append(self._spent(counts))
        return np.array(rounds), np.array(epsilons)

    @cached_property
    def members(self) -> tuple[Ids, ...]:
        """The clients that ever train in each cluster; all that ever train, if they choose their cluster."""
        everyone = np.unique(np.concatenate([np.zeros(0, np.int64), *(e.cohort for e in self.schedule.events)]))
        if any(event.clusters is None for event in self.schedule.events):
            return (everyone,) * self.schedule.clusters
        found: list[set[int]] = [set() for _ in range(self.schedule.clusters)]
        for event in self.schedule.events:
            assert event.clusters is not None
            for client, cluster in zip(event.cohort.tolist(), event.clusters.tolist(), strict=True):
                found[cluster].add(client)
        return tuple(np.array(sorted(each), np.int64) for each in found)

    def _spent(self, releases: Ids) -> Floats:
        return np.array([self.epsilon(int(releases[own].max(initial=0))) for own in self.members])


def count(counts: Ids, event: Event) -> None:
    """Add an event's releases to those that each client has taken part in, in place."""
    np.add.at(counts, event.cohort, event.intra_rounds)


def finite(epsilon: float) -> float | None:
    """Return epsilon as a JSON value: None for infinity."""
    return epsilon if math.isfinite(epsilon) else None
