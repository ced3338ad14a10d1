"""Scores of plans from their schedules alone, within the budget, without training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.clustering.describe import describe
from atoll.clustering.feduc.problem import PATTERNS, Problem
from atoll.clustering.feduc.progress import MIXING, progress_of
from atoll.evaluation.constants import label_deviations
from atoll.experiment.experiment import Experiment
from atoll.planner.plan_costs import energy_of, price_of
from atoll.schedules.events import Event
from atoll.settings.choices import method_needs
from atoll.support.arrays import Floats


@dataclass(frozen=True)
class Hop:
    """Bytes over all links of one kind.

    Attributes:
        name: from where to where, upwards.
        up: bytes sent up, or between equals.
        down: bytes sent down.
    """

    name: str
    up: int
    down: int


@dataclass(frozen=True)
class PlanScore:
    """A plan within the budget. Seconds are virtual.

    Attributes:
        seconds: until the last event within the budget.
        events: merges of all clusters.
        rounds: that they make up.
        merges: per cluster with clients, on average.
        steps: local steps per client, on average over all clients.
        client_updates: local trainings.
        longest_event: seconds.
        mean_event: seconds.
        waiting: share of the time, 0 to 1, in which participating clients neither compute nor send.
        slowest_client: name or number of the client with the longest training and upload; None if none takes any time.
        slowest_seconds: its seconds.
        mean_staleness: merges between a cluster's last download and its own merge, over all its work.
        max_staleness: the largest of these.
        hops: bytes by kind of link.
        emd: how much clusters' data differs from all data, weighted by samples: summed differences of class shares, 0
            to 2.
        clients: that take part.
        clusters: with clients.
        first_event: seconds until the first merge.
        predicted: seconds to a target, up to a factor common to plans of one pattern and T', from how often clusters
            merge and how much their data differs (`clustering.feduc.progress`); None without aggregators.
        joules: of all clients; None if their power is unknown.
        cluster_joules: of each cluster; empty if unknown.
        price: of all that is sent, in the currency of `network.file`; None if it has no prices.
    """

    seconds: float
    events: int
    rounds: int
    merges: float
    steps: float
    client_updates: int
    longest_event: float
    mean_event: float
    waiting: float
    slowest_client: str | None
    slowest_seconds: float
    mean_staleness: float
    max_staleness: int
    hops: tuple[Hop, ...]
    emd: float
    clients: int
    clusters: int
    first_event: float
    predicted: float | None = None
    joules: float | None = None
    cluster_joules: tuple[float, ...] = ()
    price: float | None = None

    @property
    def sent(self) -> int:
        """All bytes, in all directions."""
        return sum(hop.up + hop.down for hop in self.hops)


def score(experiment: Experiment) -> PlanScore:
    """Return the score of the experiment's schedule, which ends with the budget."""
    schedule, busy = experiment.method.schedule, busy_seconds(experiment)
    events = schedule.events
    lengths = np.array([event.seconds - min(event.began, default=event.seconds) for event in events])
    staleness = np.array([stale for event in events for stale in event.staleness] or [0])
    works = np.bincount([c for event in events for c in event.active], minlength=schedule.clusters)
    updates = sum(event.client_updates for event in events)
    cohorts = {id(event.cohort): event.cohort for event in events}  # a cluster's events share theirs
    taking_part = np.unique(np.concatenate(list(cohorts.values())))
    slowest = int(taking_part[busy[taking_part].argmax()])
    sizes, place = np.unique(experiment.population.sizes, return_inverse=True)
    steps = np.array([experiment.plan.rule.steps_of(size) for size in sizes.tolist()])[place]
    energy, price = energy_of(experiment), price_of(experiment)
    joules = () if energy is None else tuple(energy.of_clusters(experiment).tolist())
    return PlanScore(
        seconds=events[-1].seconds,
        events=len(events),
        rounds=schedule.rounds,
        merges=float(works[works > 0].mean()),
        steps=sum(steps[each.cohort].mean() * each.client_updates for each in events if len(each.cohort)) / len(steps),
        client_updates=updates,
        longest_event=float(lengths.max()),
        mean_event=float(lengths.mean()),
        waiting=_waiting(events, lengths, busy),
        slowest_client=_name_of(experiment, slowest) if busy[slowest] > 0 else None,
        slowest_seconds=float(busy[slowest]),
        mean_staleness=float(staleness.mean()),
        max_staleness=int(staleness.max()),
        hops=_hops(experiment),
        emd=_emd(experiment),
        clients=len(taking_part),
        clusters=int((works > 0).sum()),
        first_event=events[0].seconds,
        predicted=_predicted(experiment),
        joules=math.fsum(joules) if joules else None,
        cluster_joules=joules,
        price=None if price is None else float(price.of_clusters(experiment).sum()),
    )


def _name_of(experiment: Experiment, client: int) -> str:
    names = experiment.conditions.networks[0].client_names if method_needs(experiment.settings, "network") else None
    return str(client) if names is None else names[client]


def _predicted(experiment: Experiment) -> float | None:
    """Return the predicted seconds to a target, up to a factor, with class shares in place of gradients."""
    pattern, population = experiment.settings.method.get("pattern"), experiment.conditions.reported
    if pattern not in PATTERNS or not method_needs(experiment.settings, "network"):
        return None
    has_classes = bool(experiment.clients.dealt.data.classes)
    problem = Problem(
        pattern,
        experiment.conditions.networks[0],
        population.sizes.astype(float),
        label_deviations(population.class_counts()) if has_classes else np.zeros((len(population), 1)),
        np.full(experiment.conditions.networks[0].aggregators, np.inf),
        steps=experiment.settings.rounds,
        intra_rounds=experiment.method.schedule.events[0].intra_rounds,
    )
    return math.exp(progress_of(problem, experiment.clustering.labels).log_seconds(MIXING))


def busy_seconds(experiment: Experiment) -> Floats:
    """Return how long each client computes and sends for one training, [clients]."""
    if not method_needs(experiment.settings, "network"):
        clock = experiment.method.clock or experiment.plan.clock
        return clock.compute_seconds + clock.upload_seconds
    network, labels = experiment.conditions.networks[0], experiment.clustering.labels
    own = np.flatnonzero(labels >= 0)
    busy = network.compute_seconds.copy()
    busy[own] += network.upload_seconds[own, labels[own]]
    return busy


def _waiting(events: Sequence[Event], lengths: Floats, busy: Floats) -> float:
    """Return the share of the clients' time in events during which they neither compute nor send."""
    working = sum(float(busy[event.cohort].sum()) * event.intra_rounds for event in events)
    there = sum(len(event.cohort) * length for event, length in zip(events, lengths.tolist(), strict=True))
    return max(0.0, 1 - working / there) if there else 0.0


def _hops(experiment: Experiment) -> tuple[Hop, ...]:
    """Return the bytes of clients' links, and of those between aggregators or to the server, if there are any."""
    schedule, size = experiment.method.schedule, experiment.traffic.message_bytes
    updates = sum(event.client_updates for event in schedule.events)
    up, down = experiment.traffic.bytes_of(schedule.events)
    if not method_needs(experiment.settings, "network"):
        return (Hop("client to server", up, down),)
    lost = sum((event.late + event.dropped) * event.intra_rounds for event in schedule.events)
    first = Hop("client to aggregator", updates * experiment.traffic.update_bytes, size * (updates + lost))
    if schedule.has_server:
        return first, Hop("aggregator to server", up - first.up, down - first.down)
    return first, Hop("between aggregators", up - first.up, 0)  # what one sends another receives: counted once


def _emd(experiment: Experiment) -> float:
    """Return how much clusters' data differs from all data, weighted by samples; 0 without classes."""
    population, clustering = experiment.conditions.reported, experiment.clustering
    if not experiment.clients.dealt.data.classes or len(clustering.labels) != len(population):
        return 0.0
    profiles = describe(population, clustering)
    return float(np.average([each.emd for each in profiles], weights=[each.samples for each in profiles]))
