"""Stages: what becomes of an update on its way from a client to its cluster, one after the other (`Method.stages`)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from atoll.aggregation.mean import Combine
from atoll.engine.assignment import Assignment
from atoll.engine.release import Release
from atoll.local.models import Form, Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from atoll.aggregation.fixed_point import FixedPoint
    from atoll.engine.cohorts import ClientTrainer

Train = Callable[[ClientTask], ClientUpdate]


class Need(StrEnum):
    """What a stage may need of the method, or of the stages before it, and what these may lack."""

    MEAN = "the cluster's model is the mean of its clients' models or gradients"
    MEAN_OF_MODELS = "the cluster's model is the mean of its clients' models"
    SINGLE_UPDATES = "the server sees each client's update"
    UPDATES = "clients send updates"
    PLAIN_TRAINING = "clients train by the local rule alone, and send no more than the model"
    NO_STATE = "clients keep nothing from task to task"
    NO_MOMENTS = "no optimiser's state is communicated"
    NO_LOSSES = "no client's losses decide whether it trains, or in which cluster"
    NO_DRAWING = "no client's losses decide whether it trains"
    FIXED_CLUSTERS = "clusters are not learned from updates"
    NO_SCREENING = "no result is left out for what is in it"
    OWN_LAYERS = "clusters share no layers"
    ONE_START = "there is one start, not the best of several"
    MERGED_MODELS = "the server merges clusters' models, not single clients' updates"
    HONEST = "clients send what they have trained"
    NUMBERS = "what a client sends has the form of its model"
    BOUNDED = "its numbers have a range that is known before training"
    KNOWN_CODE = "each update is made from its client's alone, by code of Atoll"


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """One stage of an update's way. It has a half at the client and a half at the server, either of which may be None.

    The client halves are carried out in the order of the stages, the server halves in the opposite one. What a stage's
    clients keep is its own: its halves see no other stage's state, nor the trainer's.

    Attributes:
        name: of the stage, unique in its chain; what clients keep of it is saved as ``name@...``.
        told: the setting that asks for it, for errors, such as ``travel.codec = 'int8'``; of a stage in
            `travel.stages` Atoll fills it in.
        begin: client half before training: returns the task that the stages before it, and the trainer, are given.
        send: client half after training: returns what leaves the client, given its task and its update, and in `state`
            what the client keeps for its next task. Random numbers come from `atoll.generator` with `task.key`.
        receive: server half: returns the model, given what was sent, the model that the client was sent, and the
            form of the update that `send` was given. It raises ValueError for what `send` would not have returned.
        form: returns the form of what `send` returns, given the form of the update; None: the same.
        trains: returns what trains clients in the trainer's place, given the trainer; None: the trainer does.
        assign: replaces the method's assignment; None: it stays.
        combine: replaces the method's combine rule; None: it stays.
        release: makes what clusters publish of what was combined; None: they publish that.
        fixed: the fixed point in which nodes of a fleet sum their updates under masks; None: each is sent by itself.
        keeps_state: whether `send` returns a state.
        keeps_model: whether that state is part of the client's model, under the names of its tensors.
        tells_loss: whether the client still tells its training loss.
        cost: what a release costs each client in it, where updates are hidden (`privacy.mechanism.Cost`).
        digest: what server and nodes must agree on, as JSON has it.
        needs: what the method and the stages before it must not lack, and why.
        lacks: what is lacking once this stage is there, and the setting that takes it away.
    """

    name: str
    told: str = ""
    begin: Callable[[ClientTask], ClientTask] | None = None
    send: Callable[[ClientTask, ClientUpdate], ClientUpdate] | None = None
    receive: Callable[[Model, Model, Form], Model] | None = None
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
        """Let errors name it where no setting asks for it."""
        object.__setattr__(self, "told", self.told or f"stage {self.name!r}")

    @property
    def is_at_client(self) -> bool:
        """Whether it changes what clients do, so that each must train by itself."""
        return self.begin is not None or self.send is not None or self.trains is not None


def require_chain(stages: Sequence[Stage], lacking: Callable[[Need], str]) -> None:
    """Refuse stages that do not go together, with the method or with each other.

    Args:
        stages: in their order.
        lacking: returns the setting by which the method lacks this, or an empty text if it does not.

    Raises:
        InputError: names the stage and the setting, or the stage, that lacks what it needs, and says why.
    """
    names: dict[str, Stage] = {}
    before: dict[Need, str] = {}
    for stage in stages:
        if other := names.get(stage.name):
            raise InputError(f"{stage.told}: does not go with {other.told}, a stage of the same name {stage.name!r}")
        for need, why in stage.needs.items():
            if told := before.get(need) or lacking(need):
                raise InputError(f"{stage.told}: does not go with {told}: {why}")
        names[stage.name] = stage
        before = {**stage.lacks, **before}


def sent_form(stages: Iterable[Stage], form: Form) -> Form:
    """Return the form of what leaves a client, given that of its update."""
    for stage in stages:
        form = form if stage.form is None else stage.form(form)
    return form


def receive(stages: Sequence[Stage], sent: Model, start: Model, form: Form) -> Model:
    """Return the model that a client's message makes of the one that it was sent.

    Args:
        stages: in their order.
        sent: what the client sent, of the `sent_form` of `form`.
        start: the model that it was sent.
        form: of its update before the first stage.

    Raises:
        ValueError: no client half would have sent it.
    """
    forms = [form]
    for stage in stages:
        forms.append(sent_form([stage], forms[-1]))
    for stage, given in zip(reversed(stages), reversed(forms[:-1]), strict=True):
        if stage.receive is not None:
            sent = stage.receive(sent, start, given)
    return {name: sent[name] for name in form}
