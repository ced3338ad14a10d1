"""The engine: the state of a run, and the only event loop."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from atoll.aggregation.mean import Combine, average_gradients, average_models, share_layers
from atoll.aggregation.screening import Screening
from atoll.aggregation.usual_norms import Norms, remember
from atoll.engine.assignment import Assignment, ByLabel, as_scheduled, least_loss
from atoll.engine.cohorts import ClientTrainer, Executor
from atoll.engine.grouping import Grouping, read_grouping, why_no_labels
from atoll.engine.mixing import mix, mix_all
from atoll.engine.release import Release
from atoll.engine.server_rule import ServerRule, apply_rule
from atoll.engine.stages import Need, Stage, fixed_of, require_chain
from atoll.engine.states import with_newer
from atoll.engine.train_events import EventResult, train_events
from atoll.engine.trainer_spec import TrainerSpec
from atoll.local.models import Model, without
from atoll.local.rule import LocalRule
from atoll.schedules.events import Event, Schedule
from atoll.schedules.timeline import Arrivals
from atoll.support.arrays import Ids
from atoll.support.errors import InputError, RunError, blaming
from atoll.support.requiring import require, require_has

if TYPE_CHECKING:
    from atoll.aggregation.fixed_point import FixedPoint


@dataclass(frozen=True, eq=False)
class State:
    """Everything that a run needs to continue.

    Models are never changed in place, so clusters may share one.

    Attributes:
        events_done: events that are over.
        server: the server's model; None: there is no server.
        starts: the model that each cluster's clients start from.
        published: each cluster's latest average; its first start until it has one.
        refused: number of rejected results so far, by reason (`screening.REASONS`).
        server_state: the state of the method's server rule; None: none yet.
        clients: each client's state from its last task whose result was combined, if trainers keep state.
        labels: each client's cluster, int64 [clients], if clusters are learned; -1: none yet.
        norms: norms of the latest accepted updates and their clients, if usual norms are learned.
        usual: those norms as they were when each cluster got its start, so that limits do not depend on which other
            events were trained meanwhile; empty if no norms are learned.
    """

    events_done: int
    server: Model | None
    starts: tuple[Model, ...]
    published: tuple[Model, ...]
    refused: Mapping[str, int] = field(default_factory=dict)
    server_state: Model | None = None
    clients: Mapping[int, Model] = field(default_factory=dict)
    labels: Ids | None = None
    norms: Norms = ()
    usual: tuple[Norms, ...] = ()


Prepare = Callable[[Event, State, Executor], tuple[Event, State]]
"""Returns an event and the state as they are to be trained: who trains in which clusters, from which models."""

Regroup = Callable[[Event, State], Grouping | Ids]
"""Returns each client's cluster, and models for new clusters, from the completed event and the state."""


@dataclass(frozen=True, eq=False)
class Step:
    """The outcome of one event.

    Attributes:
        event: the schedule's row; with who answered, if clients may fail to.
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
    """A method: a schedule, a local rule, cluster assignment, the stages that updates pass through, and a combine rule.

    Attributes:
        schedule: who trains when, and how models are merged.
        rule: the local training rule.
        assign: returns the cluster of each client in the cohort.
        combine: how the results of a cluster's clients become its model.
        screening: which results are rejected before the others are combined; None: none.
        shared: names of the parameters that all clusters share.
        starts: number of different initial models: one for all clusters, or one per cluster.
        restarts: number of initialisations to try; the one with the least loss after `restart_rounds` is kept.
        restart_rounds: number of trial rounds per initialisation.
        trainer: makes the trainer of clients from the arguments of `Trainer`: a subclass of it, a `functools.partial`
            of one, or anything else that makes a `ClientTrainer`; None: `Trainer`.
        stages: the steps that an update passes through between its client and its cluster, in order.
        server_rule: makes the server's new model from its model before the event and the one that the event's `server`
            mix gives; None: the latter.
        stays: names of the model's tensors that are not communicated, and so are no part of the run's models.
        arrivals: makes an event of whichever cluster finishes next, in asynchronous patterns; None in others.
        labels: each client's first cluster, [clients], if clusters are learned; -1: none yet. None: they are not.
        prepare: changes each event and the state before it; None: they stay as they are.
        regroup: finds new clusters after each event that `regroups`; None: clients stay in their clusters.
        own_seconds: whether events' virtual seconds are a custom method's own instead of the clients' clock's.
        announce: called with every event before its clients are asked; an exception that it raises ends the run.
        told: returns the setting because of which the method lacks what a stage may need, for errors.
    """

    schedule: Schedule
    rule: LocalRule
    assign: Assignment = as_scheduled
    combine: Combine = average_models
    screening: Screening | None = None
    shared: tuple[str, ...] = ()
    starts: int = 1
    restarts: int = 1
    restart_rounds: int = 3
    trainer: Callable[..., ClientTrainer] | TrainerSpec | None = None
    stages: tuple[Stage, ...] = ()
    server_rule: ServerRule | None = None
    stays: tuple[str, ...] = ()
    arrivals: Arrivals | None = None
    labels: Ids | None = None
    prepare: Prepare | None = None
    regroup: Regroup | None = None
    own_seconds: bool = False
    announce: Callable[[Event], None] | None = None
    told: Callable[[Need], str] = lambda need: "the method"

    def __post_init__(self) -> None:
        """Reject what cannot be run.

        Raises:
            InputError: a server rule without a server; fewer learning rates than rounds; clients that keep state, one
                of them twice in a cohort; missing settings of learned clusters; or stages that are incompatible with
                the method or with each other.
        """
        if self.server_rule is not None and not self.schedule.has_server:
            raise InputError("Method.server_rule: the schedule has no server's model to apply it to")
        if self.rule.rates and len(self.rule.rates) < self.schedule.rounds:
            raise InputError(
                f"local.rates: has {len(self.rule.rates)} rates, but the schedule has {self.schedule.rounds} rounds; "
                "give one per round"
            )
        if self.keeps_state and self.prepare is None:
            _require_each_once(self.schedule)
        if self.labels is not None or self.regroup is not None:
            _require_learnable(self)
        require_chain(self.stages, self.lacking)

    @cached_property
    def trained_by(self) -> TrainerSpec:
        """How its trainers are made, and their properties."""
        return TrainerSpec.of(self.trainer)

    @cached_property
    def keeps_state(self) -> bool:
        """Whether clients keep state from task to task, for the trainer or a stage."""
        return self.trained_by.keeps_state or any(stage.keeps_state for stage in self.stages)

    @property
    def keeps_model(self) -> bool:
        """Whether a client's state is (part of) a model, and replaces the tensors of the same names that it is sent."""
        return self.trained_by.keeps_model or any(stage.keeps_model for stage in self.stages)

    @property
    def assigned_by(self) -> Assignment:
        """The cluster assignment: the last stage's that has one, otherwise the method's own."""
        return next((stage.assign for stage in reversed(self.stages) if stage.assign), self.assign)

    @property
    def combined_by(self) -> Combine:
        """The combine rule: the last stage's that has one, otherwise the method's own."""
        return next((stage.combine for stage in reversed(self.stages) if stage.combine), self.combine)

    @property
    def fixed(self) -> "FixedPoint | None":
        """The fixed-point format in which nodes of a fleet sum masked updates; None: updates are sent one by one."""
        return fixed_of(self.stages)

    @property
    def release(self) -> Release | None:
        """What turns combined results into clusters' models; None: they are published unchanged."""
        return next((stage.release for stage in reversed(self.stages) if stage.release), None)

    def lacking(self, need: Need) -> str:
        """Return the setting because of which the method itself lacks what a stage may need; empty if it does not."""
        return self.told(need) if need in _LACKS and _LACKS[need](self) else ""

    def with_stage(self, stage: Stage) -> "Method":
        """Return the method with another stage after its own.

        Raises:
            InputError: the stage is incompatible with the method or with an earlier stage.
        """
        return replace(self, stages=(*self.stages, stage))

    def sent(self, model: Model) -> Model:
        """Return the communicated part of a model."""
        return without(model, self.stays)

    @property
    def finds_clusters(self) -> bool:
        """Whether clients find their cluster during the run; otherwise the schedule names it."""
        return self.labels is not None or self.assign is not as_scheduled

    def global_model(self, state: State) -> Model:
        """Return the one model of the run: the server's.

        Raises:
            InputError: the schedule has no server.
        """
        if state.server is None:
            raise InputError("the schedule has no server, so there is no global model")
        return state.server


def _adds_updates(method: Method) -> bool:
    mixes = (mix for event in method.schedule.events for mix in (event.server, *dict(event.starts).values()))
    return any(mix is not None and mix.updates for mix in mixes)


_LACKS: Mapping[Need, Callable[[Method], bool]] = {
    Need.MEAN: lambda method: method.combine not in (average_models, average_gradients),
    Need.MEAN_OF_MODELS: lambda method: method.combine is not average_models,
    Need.UPDATES: lambda method: not any(event.models_up for event in method.schedule.events),
    Need.PLAIN_TRAINING: lambda method: method.trainer is not None,
    Need.NO_STATE: lambda method: method.trained_by.keeps_state,
    Need.NO_MOMENTS: lambda method: method.rule.carry_moments,
    Need.NO_LOSSES: lambda method: method.assign is not as_scheduled,
    Need.NO_DRAWING: lambda method: method.assign not in (as_scheduled, least_loss),
    Need.NO_REGROUPING: lambda method: method.regroup is not None or method.prepare is not None,
    Need.FIXED_CLUSTERS: lambda method: method.labels is not None or method.regroup is not None,
    Need.NO_SCREENING: lambda method: method.screening is not None,
    Need.OWN_LAYERS: lambda method: bool(method.shared),
    Need.ONE_START: lambda method: method.restarts > 1,
    Need.MERGED_MODELS: _adds_updates,
}
"""What a method may lack, with a test for each."""


def init(method: Method, *initial: Model) -> State:
    """Return the state before the first event, from one initial model for all or one per cluster.

    Only the communicated part of a model belongs to the state.

    Raises:
        InputError: there is neither one model nor one per cluster.
    """
    require("method", method, Method)
    for model in initial:
        if not isinstance(model, Mapping) or not model:
            raise InputError("model: must be tensors by name, as atoll.read_model(module) returns them")
    clusters = method.schedule.clusters
    if len(initial) not in (1, clusters):
        raise InputError(f"{len(initial)} initial models for {clusters} clusters; give one, or one per cluster")
    sent = tuple(map(method.sent, initial))
    models = sent * clusters if len(sent) == 1 else sent
    usual: tuple[Norms, ...] = ((),) * clusters if method.screening and method.screening.learns_norms else ()
    return State(0, sent[0] if method.schedule.has_server else None, models, models, labels=method.labels, usual=usual)


def train(method: Method, executor: Executor, state: State) -> Generator[Step]:
    """Yield after every event, from ``state.events_done`` to the schedule's end.

    Events whose clusters already have their start models are trained together, unless they share a client that keeps
    state.

    Raises:
        InputError: an argument of another type.
    """
    require("method", method, Method)
    require("state", state, State)
    require_has("executor", executor, "carries_through", "an executor, such as atoll.Serial")
    keeps_state = method.keeps_state
    while events := method.schedule.ready(state.events_done, apart=keeps_state):
        events, state = _prepared(method, executor, state, events)
        for trained in train_together(method, executor, state, events):
            step = merge(method, state, trained)
            state = step.state
            yield step


def advance(method: Method, executor: Executor, state: State, event: Event) -> Step:
    """Train the active clusters, publish, merge into the server's model, hand out new starts."""
    events, state = _prepared(method, executor, state, [event])
    (trained,) = train_together(method, executor, state, events)
    return merge(method, state, trained)


def _prepared(
    method: Method, executor: Executor, state: State, events: Sequence[Event]
) -> tuple[tuple[Event, ...], State]:
    """Return the events to train together, and the state to train them from; one at a time if the method prepares."""
    if method.prepare is None:
        return tuple(events), state
    event, state = method.prepare(events[0], state, executor)
    return (event,), state


def train_together(method: Method, executor: Executor, state: State, events: Sequence[Event]) -> list[EventResult]:
    """Train the cohorts of events that do not depend on each other."""
    assign = method.assigned_by if state.labels is None else ByLabel(state.labels)
    combine, screening, release = method.combined_by, method.screening, method.release
    return train_events(
        events, state.starts, executor, assign, combine, screening, state.clients, release, method.announce, state.usual
    )


def merge(method: Method, state: State, trained: EventResult) -> Step:
    """Publish, merge into the server's model, hand out new starts."""
    event = trained.event
    published = list(state.published)
    for cluster, model in trained.models.items():
        published[cluster] = model
    if method.shared and trained.weights:
        published = share_layers(published, method.shared, trained.weights)
    server, server_state = state.server, state.server_state
    if event.server is not None:
        server = mix(event.server, server, published, state.starts)
        if method.server_rule is not None and state.server is not None:
            server, server_state = apply_rule(method.server_rule, event.index, state.server, server, server_state)
    starts = list(state.starts)
    mixed = mix_all([recipe for _, recipe in event.starts], server, published, state.starts)
    norms, usual = remember(state.norms, trained.norms), list(state.usual)
    for (cluster, _), model in zip(event.starts, mixed, strict=True):
        starts[cluster] = model
        if usual:
            usual[cluster] = norms
    refused = state.refused if not trained.refused else Counter(state.refused) + trained.refused
    clients = _keep_states(method, state.clients, trained)
    after = State(
        event.index + 1,
        server,
        tuple(starts),
        tuple(published),
        refused,
        server_state,
        clients,
        state.labels,
        norms,
        tuple(usual),
    )
    if event.regroups:
        after = _regroup(method, event, after)
    return Step(event, after, trained.clusters, trained.loss)


def _regroup(method: Method, event: Event, state: State) -> State:
    """Return the state with the clusters found after an event."""
    if method.regroup is None or state.labels is None:
        raise RunError(f"event {event.index}: regroups, but the method has no Method.regroup")
    with blaming(f"event {event.index}: Method.regroup failed", RunError):
        made = method.regroup(event, state)
    found = read_grouping(made, len(state.labels), state.starts, f"event {event.index}: Method.regroup")
    starts, published = (
        tuple(found.models.get(cluster, model) for cluster, model in enumerate(models))
        for models in (state.starts, state.published)
    )
    return replace(state, starts=starts, published=published, labels=found.labels)


def _require_learnable(method: Method) -> None:
    if method.labels is None:
        raise InputError("Method.regroup: needs Method.labels, each client's first cluster")
    if method.assign is not as_scheduled:
        raise InputError("Method.labels: cannot be used with Method.assign, which assigns clients differently")
    if fault := why_no_labels(method.labels, len(method.labels), method.schedule.clusters):
        raise InputError(f"Method.labels: {fault}")


def _keep_states(method: Method, clients: Mapping[int, Model], trained: EventResult) -> Mapping[int, Model]:
    """Return the client states after an event."""
    if not trained.states and not (method.keeps_state and trained.weights):
        return clients
    if bool(trained.states) != method.keeps_state:
        kept, own = ("keeps", "does not") if trained.states else ("does not keep", "does")
        raise RunError(
            f"event {trained.event.index}: the executor's trainer {kept} state, but Method.trainer {own}; give the "
            "executor a trainer from Method.trainer"
        )
    return with_newer(clients, trained.states)


def _require_each_once(schedule: Schedule) -> None:
    for event in schedule.events:
        clients, counts = np.unique(event.cohort, return_counts=True)
        if (twice := clients[counts > 1]).size:
            raise InputError(
                f"event {event.index}: client {twice[0]} is in the cohort more than once, but keeps one state"
            )
