"""The training of events: from the clusters' start models to their published models."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from atoll.aggregation.usual_norms import Norms
from atoll.data.array_inputs import kind_of
from atoll.engine.assignment import NOT_CHOSEN, ByLabel
from atoll.engine.cohorts import ClusterUpdate, Cohort, Executor
from atoll.engine.combining import weighted_mean
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.local.models import Model
from atoll.schedules.events import Event
from atoll.support.arrays import Ids, Mask
from atoll.support.errors import RunError, blaming


@dataclass(frozen=True, eq=False)
class EventResult:
    """An event's result before it is merged.

    Attributes:
        event: the event, with who answered if clients may fail to.
        clusters: each cohort client's cluster.
        models: the clusters' published models.
        weights: the weight of the results of each cluster that has any.
        loss: mean local loss; None without any result.
        refused: number of rejected results, by reason.
        states: new client states, of clients whose results were combined.
        norms: norms of the combined updates, if usual norms are learned.
    """

    event: Event
    clusters: Ids
    models: dict[int, Model]
    weights: dict[int, float]
    loss: float | None
    refused: Counter[str]
    states: Mapping[int, Model] = field(default_factory=dict)
    norms: Norms = ()


def train_events(method: Method, executor: Executor, state: State, events: Sequence[Event]) -> list[EventResult]:
    """Train the cohorts of events that do not depend on each other, for each one's number of intra-cluster rounds.

    Clients that find no cluster, or are not chosen, are left out of their event.
    """
    if method.announce is not None:
        for event in events:
            method.announce(event)
    combine, screening = method.combined_by, method.screening
    carried = screening is None and method.release is None and executor.carries_through(combine)
    works = [_Work(method, executor, state, event, carried) for event in events]
    while going := [work for work in works if work.repeat < work.event.intra_rounds]:
        by_work = [work.cohorts() for work in going]
        cohorts_now = [cohort for cohorts in by_work for cohort in cohorts]
        done = iter(executor.train(cohorts_now, combine, screening) if cohorts_now else [])
        for work, cohorts in zip(going, by_work, strict=True):
            work.take(cohorts, list(islice(done, len(cohorts))))
    return [work.result(state.starts) for work in works]


class _Work:
    """An event under way, before its intra-cluster round `repeat`.

    With `carried` all its rounds are requested at once, unless their clients differ. A client's state is passed from
    one round to the next.
    """

    def __init__(self, method: Method, executor: Executor, state: State, event: Event, carried: bool) -> None:
        starts, release = state.starts, method.release
        assign = method.assigned_by if state.labels is None else ByLabel(state.labels)
        self._planned = event  # before any client is left out of it
        with blaming(f"event {event.index}: finding clients' clusters failed", RunError):
            clusters = assign(event, starts, executor) if len(event.cohort) else event.cohort
        told, most = "", len(starts) - 1
        if getattr(clusters, "shape", None) != event.cohort.shape or clusters.dtype.kind not in "iu":
            told = f"whole numbers [{len(event.cohort)}], not {kind_of(clusters)}"
        elif len(clusters) and not NOT_CHOSEN <= clusters.min() <= clusters.max() <= most:
            told = f"clusters from 0 to {most}, -1 or {NOT_CHOSEN}, not from {clusters.min()} to {clusters.max()}"
        if told:
            raise RunError(f"event {event.index}: what finds clients' clusters must return {told}")
        kept = clusters >= 0
        if not kept.all():
            lost = int(np.count_nonzero(clusters[~kept] != NOT_CHOSEN))
            unsent = max(0, event.client_updates - len(clusters[kept]) * event.intra_rounds)
            clusters = clusters[kept]
            event = replace(
                event,
                cohort=event.cohort[kept],
                clusters=None if event.clusters is None else clusters,
                weights=event.weights[kept],
                models_up=event.models_up - min(unsent, lost * event.intra_rounds),
                dropped=event.dropped + lost,
            )
        self.event = event
        self.repeat = 0
        self.repeats = event.intra_rounds if carried and event.answered is None else 1
        self.clusters = clusters
        self.rows = _rows_of(clusters)
        publishing = event.active if release is not None and event.clusters is None else self.rows
        self.averages = {c: ClusterUpdate(starts[c], math.nan, 0.0) for c in publishing}
        self.weights: dict[int, float] = {}
        self.refused: Counter[str] = Counter()
        self.answered: Mask | None = None
        self.states: dict[int, Model] = {}
        self.norms: Norms = ()
        self._kept_states = state.clients
        self._release = release
        self._usual = state.usual

    def cohorts(self) -> list[Cohort]:
        """Return the next cohorts, one for each cluster with clients, by ascending cluster."""
        event = self.event
        number, round_ = event.drawn_as or (event.index, event.round)
        weights = event.weights if event.answered is None else event.weights[event.answered[self.repeat]]
        total = float(weights.sum())
        return [
            Cohort(
                *(event.index, round_, self.repeat, c, event.cohort[own], event.weights[own]),
                event_weight=total,
                start=self.averages[c].model,
                drawn_as=None if number == event.index else number,
                repeats=self.repeats,
                states=self._states_of(event.cohort[own]),
                usual=self._usual[c] if self._usual else (),
            )
            for c in self.rows
            if len(own := self._rows(c))
        ]

    def take(self, cohorts: Sequence[Cohort], averages: Sequence[ClusterUpdate]) -> None:
        """Take these cohorts' updates; a cluster without answers keeps its model."""
        self.weights = {}
        sent = {cluster: average.model for cluster, average in self.averages.items()}
        updates = {cohort.cluster: (cohort, average) for cohort, average in zip(cohorts, averages, strict=True)}
        for cluster, before in self.averages.items():
            if cluster not in updates:
                self.averages[cluster] = ClusterUpdate(before.model, math.nan, 0.0)
                continue
            cohort, average = updates[cluster]
            self.averages[cluster] = average
            self.states.update(average.states)
            self.norms += average.norms
            self.refused.update(average.refused)
            if average.answered is not None:
                self._note(cluster, average.answered)
                if average.answered.any():
                    self.weights[cluster] = float(cohort.weights[average.answered].sum())
            elif average.arrived:
                self.weights[cluster] = float(cohort.weights.sum()) * average.arrived
        if self._release is not None:
            made = self._release.publish(self._planned, self.repeat, sent, self.averages, self.weights)
            self.averages = {c: replace(each, model=made[c]) for c, each in self.averages.items()}
        self.repeat += self.repeats

    def result(self, starts: Sequence[Model]) -> EventResult:
        """Return the outcome; an active cluster that no client trained publishes its start model.

        With a release the loss is withheld.
        """
        models = {} if self.event.clusters is None else {c: starts[c] for c in self.event.active}
        models |= {c: average.model for c, average in self.averages.items()}
        losses = [] if self._release is not None else [self.averages[c].loss for c in self.weights]
        loss = weighted_mean(losses, self.weights.values()) if losses else None
        event = self.event
        if self.answered is not None:
            missing = int(self.answered.size - self.answered.sum())
            event = replace(event, answered=self.answered, models_up=event.models_up - missing)
        return EventResult(event, self.clusters, models, self.weights, loss, self.refused, self.states, self.norms)

    def _rows(self, cluster: int) -> Ids:
        """Return the rows of the cohort that train in a cluster."""
        own = self.rows[cluster]
        return own if self.event.answered is None else own[self.event.answered[self.repeat, own]]

    def _states_of(self, clients: Ids) -> dict[int, Model]:
        """Return the states of these clients that have one."""
        if not (self.states or self._kept_states):
            return {}
        latest = ((k, self.states.get(k) or self._kept_states.get(k)) for k in clients.tolist())
        return {client: state for client, state in latest if state is not None}

    def _note(self, cluster: int, answered: Mask) -> None:
        """Record which of the clients that were asked did not answer."""
        if answered.all():
            return
        if self.answered is None:
            everyone = np.ones((self.event.intra_rounds, len(self.event.cohort)), bool)
            self.answered = everyone if self.event.answered is None else self.event.answered.copy()
        self.answered[self.repeat, self._rows(cluster)[~answered]] = False


def _rows_of(clusters: Ids) -> dict[int, Ids]:
    """Return the rows of each cluster that has any, both ascending."""
    counts, order = np.bincount(clusters), np.argsort(clusters, kind="stable")
    bounds = zip(counts.tolist(), np.cumsum(counts).tolist(), strict=True)
    return {cluster: order[end - count : end] for cluster, (count, end) in enumerate(bounds) if count}
