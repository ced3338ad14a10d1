"""The engine: the state of a run, and the only event loop."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from atoll.combine import Combine, average_models, mean, share_layers
from atoll.errors import InputError
from atoll.executors.base import Average, Cohort, Executor
from atoll.identity import Identity, fixed
from atoll.local import LocalRule
from atoll.models import Model
from atoll.schedules import Event, Ids, Mix, Schedule


@dataclass(frozen=True, eq=False)
class State:
    """Everything that a run needs to go on.

    Models are never changed in place, so clusters may share one.

    Attributes:
        events_done: events that are over.
        server: the server's model, or None where there is no server.
        starts: the model that each cluster's clients start from.
        published: each cluster's latest average; its first start until it has one.
        refused: clients' results that were left out so far, by reason (`screening.REASONS`).
    """

    events_done: int
    server: Model | None
    starts: tuple[Model, ...]
    published: tuple[Model, ...]
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Step:
    """What one event did.

    Attributes:
        event: the row of the schedule.
        state: the state after it.
        clusters: the cluster that each cohort client trained in.
        loss: mean local training loss over the cohort, weighted by samples; None if no result was combined.
    """

    event: Event
    state: State
    clusters: Ids
    loss: float | None


@dataclass(frozen=True, eq=False)
class Method:
    """A method is a schedule, a local rule, how clients find their cluster, and how their results combine.

    Attributes:
        schedule: who trains when, and how models are merged.
        rule: what a client does.
        identity: which cluster each of the cohort's clients belongs to.
        combine: how the results of a cluster's clients become its model.
        shared: names of the parameters that all clusters have in common.
        starts: number of different models that the clusters start from: one for all, or one a cluster.
    """

    schedule: Schedule
    rule: LocalRule
    identity: Identity = fixed
    combine: Combine = average_models
    shared: tuple[str, ...] = ()
    starts: int = 1

    def global_model(self, state: State) -> Model:
        """Return the one model that stands for the run: the server's.

        Raises:
            InputError: the schedule has no server.
        """
        if state.server is None:
            raise InputError("the schedule has no server, so there is no global model")
        return state.server


def begin(method: Method, *initial: Model) -> State:
    """Return the state before the first event: everyone has the one initial model, or each cluster its own.

    Raises:
        InputError: neither one model nor one a cluster.
    """
    clusters = method.schedule.clusters
    if len(initial) not in (1, clusters):
        raise InputError(f"{len(initial)} initial models for {clusters} clusters; give one, or one a cluster")
    models = initial * clusters if len(initial) == 1 else initial
    return State(0, initial[0] if method.schedule.has_server else None, models, models)


def run(method: Method, executor: Executor, state: State) -> Iterator[Step]:
    """Yield after every event, from ``state.events_done`` to the schedule's end.

    Events whose clusters already have their start models are trained together.
    """
    while events := method.schedule.ready(state.events_done):
        for event, trained in zip(events, _train(method, executor, state.starts, events), strict=True):
            step = _merge(method, state, event, trained)
            state = step.state
            yield step


def advance(method: Method, executor: Executor, state: State, event: Event) -> Step:
    """Train the active clusters, publish, merge into the server's model, hand out new starts."""
    (trained,) = _train(method, executor, state.starts, [event])
    return _merge(method, state, event, trained)


@dataclass(frozen=True, eq=False)
class _Trained:
    """An event's work before it is merged: each client's cluster, what clusters publish, the weight of the results in
    those that have any, the mean local loss, and how many results were left out, by reason."""

    clusters: Ids
    models: dict[int, Model]
    weights: dict[int, float]
    loss: float | None
    refused: Counter[str]


def _train(method: Method, executor: Executor, starts: Sequence[Model], events: Sequence[Event]) -> list[_Trained]:
    """Train the cohorts of events that do not depend on each other, as often as each event's intra-cluster rounds."""
    clusters = [method.identity(each, starts, executor) if len(each.cohort) else each.cohort for each in events]
    cohorts = [_split(event, own, starts) for event, own in zip(events, clusters, strict=True)]
    averages: list[list[Average]] = [[] for _ in events]
    refused: list[Counter[str]] = [Counter() for _ in events]
    for repeat in range(max(event.intra_rounds for event in events)):
        going = [i for i, event in enumerate(events) if repeat < event.intra_rounds]
        if repeat:
            for i in going:
                cohorts[i] = [
                    replace(cohort, repeat=repeat, start=average.model)
                    for cohort, average in zip(cohorts[i], averages[i], strict=True)
                ]
        wanted = [cohort for i in going for cohort in cohorts[i]]
        done = iter(executor.train(wanted, method.combine) if wanted else [])
        for i in going:
            averages[i] = list(islice(done, len(cohorts[i])))
            for average in averages[i]:
                refused[i].update(average.refused)
    return [_gather(*each, starts) for each in zip(events, clusters, cohorts, averages, refused, strict=True)]


def _split(event: Event, clusters: Ids, starts: Sequence[Model]) -> list[Cohort]:
    """Return the event's cohorts, one a cluster that has clients in it, by ascending cluster."""
    total = float(event.weights.sum())
    rows = ((int(c), np.flatnonzero(clusters == c)) for c in np.unique(clusters))
    return [
        Cohort(event.index, event.round, 0, c, event.cohort[own], event.weights[own], total, starts[c])
        for c, own in rows
    ]


def _gather(
    event: Event,
    clusters: Ids,
    cohorts: Sequence[Cohort],
    averages: Sequence[Average],
    refused: Counter[str],
    starts: Sequence[Model],
) -> _Trained:
    """Put an event's averages together; an active cluster that nobody trained publishes what it started from."""
    models = {} if event.clusters is None else {c: starts[c] for c in event.active}
    weights, losses = {}, []
    for cohort, average in zip(cohorts, averages, strict=True):
        models[cohort.cluster] = average.model
        if average.arrived:
            weights[cohort.cluster] = float(cohort.weights.sum()) * average.arrived
            losses.append(average.loss)
    loss = float(np.average(losses, weights=list(weights.values()))) if losses else None
    return _Trained(clusters, models, weights, loss, refused)


def _merge(method: Method, state: State, event: Event, trained: _Trained) -> Step:
    """Publish, merge into the server's model, hand out new starts."""
    published = list(state.published)
    for cluster, model in trained.models.items():
        published[cluster] = model
    if method.shared and trained.weights:
        published = share_layers(published, method.shared, trained.weights)
    server = state.server if event.server is None else _mix(event.server, state.server, published)
    starts = list(state.starts)
    for cluster, recipe in event.starts:
        starts[cluster] = _mix(recipe, server, published)
    refused = state.refused if not trained.refused else Counter(state.refused) + trained.refused
    after = State(event.index + 1, server, tuple(starts), tuple(published), refused)
    return Step(event, after, trained.clusters, trained.loss)


def _mix(recipe: Mix, server: Model | None, published: Sequence[Model]) -> Model:
    """Form a model as the recipe says; a recipe with one source of weight one is that source, not a copy."""
    sources = [(weight, published[cluster]) for cluster, weight in recipe.published]
    if recipe.server and server is not None:
        sources.insert(0, (recipe.server, server))
    return sources[0][1] if len(sources) == 1 else mean(sources)
