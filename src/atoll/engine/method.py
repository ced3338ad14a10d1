"""A method: what a run does, as its name, its settings and their features make it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.aggregation.mean import Combine, average_gradients, average_models
from atoll.aggregation.screening import Screening
from atoll.engine.assignment import Assignment, as_scheduled, least_loss
from atoll.engine.cohorts import ClientTrainer, Executor
from atoll.engine.grouping import Grouping, why_no_labels
from atoll.engine.run_state import State
from atoll.engine.server_rule import ServerRule
from atoll.engine.stages import Need, Release, Stage, fixed_of, require_chain
from atoll.local.models import Model, without
from atoll.local.rule import LocalRule
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event, Schedule
from atoll.schedules.timeline import Arrivals
from atoll.support.arrays import Ids
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from atoll.aggregation.fixed_point import FixedPoint


@dataclass(frozen=True)
class TrainerSpec:
    """Makes a method's trainers. Its options are explicit, so that server and nodes can compare them.

    Attributes:
        make: called with the arguments of `atoll.Trainer` and the options; None: `atoll.Trainer`.
        options: further keyword arguments.
        keeps_state: whether clients keep state from task to task.
        keeps_model: whether that state replaces the tensors of the same names that a client is sent.
        trains_parts: whether it trains models without the frozen parameters, which are in its module.
    """

    make: "Callable[..., ClientTrainer] | None" = None
    options: Mapping[str, Any] = field(default_factory=dict)
    keeps_state: bool = False
    keeps_model: bool = False
    trains_parts: bool = False

    @classmethod
    def of(cls, made: "Callable[..., ClientTrainer] | TrainerSpec | None") -> "TrainerSpec":
        """Return the spec of a trainer class, or of a `functools.partial` of one."""
        if isinstance(made, TrainerSpec):
            return made
        make, options = (made.func, made.keywords) if isinstance(made, partial) else (made, {})
        says = {name: bool(getattr(make, name, False)) for name in ("keeps_state", "keeps_model", "trains_parts")}
        return cls(make, options, **says)

    def __call__(self, *given: Any, **named: Any) -> "ClientTrainer":
        """Return a trainer."""
        from atoll.local.trainer import Trainer  # late: reading settings needs no PyTorch

        return (self.make or Trainer)(*given, **{**self.options, **named})


Prepare = Callable[[Event, State, Executor], tuple[Event, State]]
"""Returns an event and the state as they are to be trained: who trains in which clusters, from which models."""

Regroup = Callable[[Event, State], Grouping | Ids]
"""Returns each client's cluster, and models for new clusters, from the completed event and the state."""


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
        clock: the clients' times that the schedule is made with; None: those of the run.
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
    clock: Clock | None = None
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


def _require_learnable(method: Method) -> None:
    if method.labels is None:
        raise InputError("Method.regroup: needs Method.labels, each client's first cluster")
    if method.assign is not as_scheduled:
        raise InputError("Method.labels: cannot be used with Method.assign, which assigns clients differently")
    if fault := why_no_labels(method.labels, len(method.labels), method.schedule.clusters):
        raise InputError(f"Method.labels: {fault}")


def _require_each_once(schedule: Schedule) -> None:
    for event in schedule.events:
        clients, counts = np.unique(event.cohort, return_counts=True)
        if (twice := clients[counts > 1]).size:
            raise InputError(
                f"event {event.index}: client {twice[0]} is in the cohort more than once, but keeps one state"
            )
