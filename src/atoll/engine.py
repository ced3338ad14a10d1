"""The engine: the state of a run, and the only event loop."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from atoll.combine import Combine, average_models, mean, share_layers
from atoll.errors import InputError
from atoll.executors.base import Executor
from atoll.identity import Identity, fixed
from atoll.local import LocalRule, Outcome, Task
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
    """

    events_done: int
    server: Model | None
    starts: tuple[Model, ...]
    published: tuple[Model, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """What one event did.

    Attributes:
        event: the row of the schedule.
        state: the state after it.
        clusters: the cluster that each cohort client trained in.
        loss: mean local training loss over the cohort, weighted by samples.
    """

    event: Event
    state: State
    clusters: Ids
    loss: float


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
    """Yield after every event, from ``state.events_done`` to the schedule's end."""
    for event in method.schedule.events[state.events_done :]:
        step = advance(method, executor, state, event)
        state = step.state
        yield step


def advance(method: Method, executor: Executor, state: State, event: Event) -> Step:
    """Train the active clusters, publish, merge into the server's model, hand out new starts."""
    clusters = method.identity(event, state.starts, executor)
    trained = dict(enumerate(state.starts))
    for repeat in range(event.intra_rounds):
        averages, loss = _train_clusters(method, executor, event, clusters, repeat, trained)
        trained |= averages
    published = tuple(trained[c] if c in averages else model for c, model in enumerate(state.published))
    if method.shared:
        weights = {c: float(event.weights[clusters == c].sum()) for c in averages}
        published = share_layers(published, method.shared, weights)
    server = state.server if event.server is None else _mix(event.server, state.server, published)
    starts = list(state.starts)
    for cluster, recipe in event.starts:
        starts[cluster] = _mix(recipe, server, published)
    return Step(event, State(event.index + 1, server, tuple(starts), published), clusters, loss)


def _train_clusters(
    method: Method, executor: Executor, event: Event, clusters: Ids, repeat: int, starts: dict[int, Model]
) -> tuple[dict[int, Model], float]:
    """Train the cohort once; return each trained cluster's combined model, and the mean local loss."""
    order = np.argsort(clusters, kind="stable")
    tasks = [
        Task(event.index, event.round, repeat, int(clusters[i]), int(event.cohort[i]), starts[int(clusters[i])])
        for i in order
    ]
    weights = event.weights[order].tolist()
    outcomes = zip(tasks, weights, executor.train(tasks), strict=True)
    losses: list[float] = []

    def pairs(group: Iterable[tuple[Task, float, Outcome]]) -> Iterator[tuple[float, Model]]:
        for _, weight, outcome in group:
            losses.append(outcome.loss)
            yield weight, outcome.model

    averages = {
        cluster: method.combine(pairs(group), starts[cluster], sum(weights))
        for cluster, group in groupby(outcomes, key=lambda row: row[0].cluster)
    }
    return averages, float(np.average(losses, weights=weights))


def _mix(recipe: Mix, server: Model | None, published: tuple[Model, ...]) -> Model:
    """Form a model as the recipe says; a recipe with one source of weight one is that source, not a copy."""
    sources = [(weight, published[cluster]) for cluster, weight in recipe.published]
    if recipe.server and server is not None:
        sources.insert(0, (recipe.server, server))
    return sources[0][1] if len(sources) == 1 else mean(sources)
