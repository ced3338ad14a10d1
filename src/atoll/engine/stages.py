"""Stages: the steps that each update passes through between its client and its cluster (`Method.stages`)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from atoll.aggregation.mean import Combine
from atoll.engine.assignment import Assignment
from atoll.engine.cohorts import ClientTrainer, ClusterUpdate
from atoll.local.models import Form, Model, form_of
from atoll.local.task import ClientTask, ClientUpdate
from atoll.schedules.events import Event
from atoll.support.errors import InputError, blaming

if TYPE_CHECKING:
    from atoll.aggregation.fixed_point import FixedPoint

Train = Callable[[ClientTask], ClientUpdate]
Receive = Callable[[Model, Model, Form], Model]


class Need(StrEnum):
    """What a stage may need from the method or from earlier stages, and what these may lack."""

    MEAN = "the cluster's model is the mean of its clients' models or gradients"
    MEAN_OF_MODELS = "the cluster's model is the mean of its clients' models"
    SINGLE_UPDATES = "the server sees each client's update"
    UPDATES = "clients send updates"
    PLAIN_TRAINING = "clients train by the local rule alone, and send no more than the model"
    NO_STATE = "clients keep nothing from task to task"
    NO_MOMENTS = "no optimiser's state is communicated"
    NO_LOSSES = "no client's losses decide whether it trains, or in which cluster"
    NO_DRAWING = "no client's losses decide whether it trains"
    NO_REGROUPING = "clusters do not change with what clients send"
    FIXED_CLUSTERS = "clusters are not learned from updates"
    NO_SCREENING = "no result is rejected because of its content"
    OWN_LAYERS = "clusters share no layers"
    ONE_START = "there is one start, not the best of several"
    MERGED_MODELS = "the server merges clusters' models, not single clients' updates"
    HONEST = "clients send what they trained"
    NUMBERS = "what a client sends has the form of its model"
    BOUNDED = "its numbers have a range known before training"
    KNOWN_CODE = "each update is derived from one client's data alone, by code of Atoll"


class Release(Protocol):
    """Turns a cluster's combined result into its published model (`Stage.release`).

    Losses that clients report are then dropped. If clients choose their clusters, all clusters publish in every event,
    so that a missing one does not reveal which clients failed to answer.
    """

    def publish(
        self,
        event: Event,
        repeat: int,
        sent: Mapping[int, Model],
        combined: Mapping[int, ClusterUpdate],
        weights: Mapping[int, float],
    ) -> dict[int, Model]:
        """Return the model that each cluster publishes.

        Args:
            event: the planned event.
            repeat: number of the intra-cluster round within it.
            sent: the model that each cluster's clients were sent.
            combined: their combined results, if any (`arrived`).
            weights: the weight of the results of each cluster that has any.
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """One step between a client and its cluster, with a client half and a server half; either may be None.

    Client halves run in the order of the stages, server halves in reverse. Each stage has its own client state: it sees
    neither the trainer's nor another stage's.

    Attributes:
        name: unique in the chain; the stage's client state is saved as ``name@...``.
        told: the setting that asks for it, such as ``travel.codec = 'int8'``, for errors; set by `travel.stages`.
        begin: client half before training; returns the task for earlier stages and the trainer.
        send: client half after training; given the task and the update, returns what leaves the client, with the state
            to keep for its next task. Draw random numbers from `atoll.generator` with `task.key`.
        receive: server half; returns the model, given the message, the start model, and the form of the update that
            `send` was given. Raises ValueError if `send` could not have produced the message.
        form: maps the form of the update to the form of the message; None: they are equal.
        trains: replaces the trainer's `train`, given the trainer; None: it is kept.
        assign: replaces the method's assignment; None: it is kept.
        combine: replaces the method's combine rule; None: it is kept.
        release: turns the combined result into the model that the cluster publishes; None: it is published unchanged.
        fixed: the fixed-point format in which nodes of a fleet sum masked updates; None: updates are sent one by one.
        keeps_state: whether `send` returns a state.
        keeps_model: whether that state is part of the client's model, under the names of its tensors.
        tells_loss: whether the client still reports its training loss.
        cost: privacy cost of a release to each participating client (`privacy.mechanism.Cost`); None: no privacy.
        digest: what server and nodes must agree on, as JSON values.
        needs: what the method and earlier stages must not lack, with the reason.
        lacks: what later stages cannot have because of this one, with the setting that is responsible.
    """

    name: str
    told: str = ""
    begin: Callable[[ClientTask], ClientTask] | None = None
    send: Callable[[ClientTask, ClientUpdate], ClientUpdate] | None = None
    receive: Receive | None = None
    form: Callable[[Form], Form] | None = None
    trains: "Callable[[ClientTrainer], Train] | None" = None
    assign: Assignment | None = None
    combine: Combine | None = None
    release: Release | None = None
    fixed: "FixedPoint | None" = None
    keeps_state: bool = False
    keeps_model: bool = False
    tells_loss: bool = True
    cost: Any = None
    digest: Any = None
    needs: Mapping[Need, str] = field(default_factory=dict)
    lacks: Mapping[Need, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Name the stage in errors if no setting does; refuse a name, needs or lacks of a wrong type."""
        if not (isinstance(self.name, str) and isinstance(self.needs, Mapping) and isinstance(self.lacks, Mapping)):
            raise InputError("Stage: name must be a text, and needs and lacks dicts of a text for each atoll.Need")
        object.__setattr__(self, "told", self.told or f"stage {self.name!r}")

    @property
    def is_at_client(self) -> bool:
        """Whether it has a client half, so that clients must train one by one."""
        return self.begin is not None or self.send is not None or self.trains is not None


def require_chain(stages: Sequence[Stage], lacking: Callable[[Need], str]) -> None:
    """Reject stages that are incompatible with the method or with each other.

    Args:
        stages: in their order.
        lacking: returns the setting because of which the method lacks something; empty if it does not.
    """
    names: dict[str, Stage] = {}
    before: dict[Need, str] = {}
    for stage in stages:
        if other := names.get(stage.name):
            raise InputError(f"{stage.told}: cannot be used with {other.told}, a stage of the same name {stage.name!r}")
        if stage.trains and (other := next((each for each in names.values() if each.trains), None)):
            raise InputError(f"{stage.told}: cannot be used with {other.told}: both replace how clients train")
        for need, why in stage.needs.items():
            if told := before.get(need) or lacking(need):
                raise InputError(f"{stage.told}: cannot be used with {told}: {why}")
        names[stage.name] = stage
        before = {**stage.lacks, **before}


def fixed_of(stages: Iterable[Stage]) -> "FixedPoint | None":
    """Return the fixed-point format of masked sums; None: updates are sent one by one."""
    return next((stage.fixed for stage in stages if stage.fixed), None)


def sent_form(stages: Iterable[Stage], form: Form) -> Form:
    """Return the form of what leaves a client, given the form of its update."""
    from torch import Size, dtype  # here, so that reading settings stays fast

    for stage in stages:
        with blaming(f"{stage.told}: its form failed", InputError):
            form = form if stage.form is None else stage.form(form)
        if not (isinstance(form, dict) and all(list(map(type, each)) == [Size, dtype] for each in form.values())):
            raise InputError(f"{stage.told}: its form must return a dict of (torch.Size, torch.dtype) by name")
    return form


def receive(stages: Sequence[Stage], sent: Model, start: Model, form: Form) -> Model:
    """Return the model that the server reconstructs from a client's message.

    Args:
        stages: in their order.
        sent: the message; its form is `sent_form(stages, form)`.
        start: the model that the client started from.
        form: form of the update before the first stage.
    """
    forms = [form]
    for stage in stages:
        forms.append(sent_form([stage], forms[-1]))
    for stage, given in zip(reversed(stages), reversed(forms[:-1]), strict=True):
        if stage.receive is not None:
            sent = _received(stage.receive, sent, start, given)
    return {name: sent[name] for name in form}


def _received(half: Receive, sent: Model, start: Model, form: Form) -> Model:
    """Return the result of a server half on an untrusted message, which a user's code may not expect."""
    try:
        model = half(sent, start, form)
    except Exception as error:
        raise ValueError(f"the server half failed ({type(error).__name__}: {error})") from error
    if form_of(model) != form:
        raise ValueError("the server half returned another form")
    return model
