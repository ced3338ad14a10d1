"""The engine: the state of a run, and the only event loop."""

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from atoll.aggregation.mean import Combine, average_models, mean, share_layers
from atoll.engine.assignment import Assignment, as_scheduled
from atoll.engine.cohorts import Executor
from atoll.engine.events import EventResult, train_events
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.schedules.events import Event, Mix, Schedule
from atoll.support.arrays import Ids
from atoll.support.errors import InputError


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
        event: the row of the schedule; with what was found out only now, where clients may fail to answer.
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
        assign: which cluster each of the cohort's clients belongs to.
        combine: how the results of a cluster's clients become its model.
        shared: names of the parameters that all clusters have in common.
        starts: number of different models that the clusters start from: one for all, or one a cluster.
        restarts: starts that are tried; the one with the least loss after `restart_rounds` is kept.
        restart_rounds: rounds that each start is tried for.
    """

    schedule: Schedule
    rule: LocalRule
    assign: Assignment = as_scheduled
    combine: Combine = average_models
    shared: tuple[str, ...] = ()
    starts: int = 1
    restarts: int = 1
    restart_rounds: int = 3

    def global_model(self, state: State) -> Model:
        """Return the one model that stands for the run: the server's.

        Raises:
            InputError: the schedule has no server.
        """
        if state.server is None:
            raise InputError("the schedule has no server, so there is no global model")
        return state.server


def init(method: Method, *initial: Model) -> State:
    """Return the state before the first event: everyone has the one initial model, or each cluster its own.

    Raises:
        InputError: neither one model nor one a cluster.
    """
    clusters = method.schedule.clusters
    if len(initial) not in (1, clusters):
        raise InputError(f"{len(initial)} initial models for {clusters} clusters; give one, or one a cluster")
    models = initial * clusters if len(initial) == 1 else initial
    return State(0, initial[0] if method.schedule.has_server else None, models, models)


def train(method: Method, executor: Executor, state: State) -> Generator[Step]:
    """Yield after every event, from ``state.events_done`` to the schedule's end.

    Events whose clusters already have their start models are trained together.
    """
    while events := method.schedule.ready(state.events_done):
        for trained in train_events(events, state.starts, executor, method.assign, method.combine):
            step = merge(method, state, trained)
            state = step.state
            yield step


def advance(method: Method, executor: Executor, state: State, event: Event) -> Step:
    """Train the active clusters, publish, merge into the server's model, hand out new starts."""
    (trained,) = train_events([event], state.starts, executor, method.assign, method.combine)
    return merge(method, state, trained)


def merge(method: Method, state: State, trained: EventResult) -> Step:
    """Publish, merge into the server's model, hand out new starts."""
    event = trained.event
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
