"""What server and nodes, each with its own copy of the settings, must agree on."""

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from atoll.aggregation.fixed_point import FixedPoint
from atoll.data.dataset import Dataset, Standard
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.engine.stages import Stage, fixed_of, sent_form
from atoll.experiment.modules import make_chain, rehearse
from atoll.fleet.agreed.comparable import plain
from atoll.fleet.agreed.terms import announce
from atoll.local.models import Form, form_of
from atoll.local.rule import LocalRule
from atoll.local.weights import place, read_model
from atoll.settings.choices import method_kind
from atoll.settings.sections import FaultSettings
from atoll.settings.validation import Settings
from atoll.support.errors import InputError

_OF_RUN = ("precision", "debug")

MOST_PASSES = 16
"""How often a trainer may pass a step's samples: a node that says more says nothing true of its speed."""


@dataclass(frozen=True)
class DataForm:
    """The form of the clients' data, which a node's samples must have: as in `Dataset`; `shape` is one input's."""

    shape: tuple[int, ...]
    classes: int
    scale: float
    loss: str
    standard: Standard | None = None

    @classmethod
    def of(cls, data: Dataset) -> "DataForm":
        """Return the form of a data set."""
        return cls(data.shape, data.classes, data.scale, data.loss, data.standard)


@dataclass(frozen=True, eq=False)
class Agreement:
    """What server and nodes must agree on.

    Attributes:
        digest: checksum of everything that a client's work depends on.
        form: of a client's update before the first stage, with communicated moments.
        keeps_state: whether clients keep a state from task to task, each at its own node.
        told: settings announced to nodes, which need not follow them.
    """

    digest: str
    form: Form
    clients: int
    rule: LocalRule
    classes: int = 0
    keeps_state: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()

    def passed_by(self, samples: int) -> int:
        """Return the samples in all batches of a task of a client with so many."""
        a_step = samples if self.rule.batch_size == "full" else self.rule.batch_size
        return a_step * self.rule.steps_of(samples)

    def can_pass(self, passed: int, samples: int) -> bool:
        """Return whether a client with so many samples may have trained on so many, counted once for each batch."""
        return 1 <= passed <= MOST_PASSES * self.passed_by(samples)

    @property
    def sent_form(self) -> Form:
        """Form of a client's message, or, with masked sums, of a node's."""
        return sent_form(self.stages, self.form)

    @property
    def fixed(self) -> FixedPoint | None:
        """The fixed-point format of masked sums; None: updates are sent one by one."""
        return fixed_of(self.stages)


def agree(settings: Settings, data: Dataset, module: nn.Module, method: Method) -> Agreement:
    """Return what the owner of these settings expects of the other side."""
    require_fleet(settings)
    digest, form = digest_of(settings, DataForm.of(data), method), _answer_form(settings, data, module, method)
    told = announce(settings)
    clients, keeps_state = settings.data.clients, method.keeps_state
    return Agreement(digest, form, clients, method.rule, data.classes, keeps_state, told, method.stages)


def require_fleet(settings: Settings) -> None:
    """Reject settings that make no sense with clients on their own machines."""
    name = settings.method.name
    if why := method_kind(settings).why_one_place:
        raise InputError(f"method.name = {name!r}: cannot be used with run.executor = 'fleet', {why}")
    faults = settings.faults
    simulated = ("dropout", "attackers", "slots_per_day", "availability_file")
    if in_use := [key for key in simulated if getattr(faults, key) != FaultSettings.model_fields[key].default]:
        raise InputError(
            f"faults.{in_use[0]} = {getattr(faults, in_use[0])}: is for simulation; with run.executor = 'fleet' faults "
            "are those that happen"
        )
    if settings.privacy.trust == "aggregator":
        raise InputError(
            "privacy.trust = 'aggregator': is for simulation; on a fleet aggregators are in the server's process, so "
            "who trusts them trusts the server: use 'server' or 'client'"
        )


def digest_of(settings: Settings, form: DataForm, method: Method) -> str:
    """Return a checksum of everything that a client's work depends on, so that both sides can compare.

    It is derived from what reaches a client: the seed, the model, the form of the data, `run.precision`, `run.debug`,
    the method's name, local rule and trainer options, the layers that stay, and each stage's digest. For a user's own
    method it includes the whole section and the rounds, since its functions may depend on them.
    """
    run, wanted = dict(settings.run), settings.method
    is_own = ":" in wanted.name
    agreed: dict[str, Any] = {
        "seed": settings.seed,
        "rounds": settings.rounds if is_own else None,
        "model": settings.model.model_dump(exclude={"start"}),
        "local": settings.local.model_dump(),
        "method": wanted.model_dump() if is_own else wanted.name,
        "rule": plain(method.rule, f"method.name = {wanted.name!r}: its local rule"),
        "trainer": plain(method.trained_by, f"method.name = {wanted.name!r}: its trainer"),
        "stays": method.stays,
        "stages": [(stage.name, stage.digest) for stage in method.stages if stage.digest is not None],
        "run": {key: run[key] for key in _OF_RUN},
        "data": asdict(form),
    }
    return hashlib.sha256(json.dumps(agreed, sort_keys=True, default=str).encode()).hexdigest()


def _answer_form(settings: Settings, data: Dataset, module: nn.Module, method: Method) -> Form:
    """Return the form of a client's update, found by a step on dummy samples."""
    short = replace(method, rule=replace(method.rule, steps=1, epochs=None, resample_parts=0))
    copy = place(deepcopy(module))
    start = method.sent(read_model(copy))
    trainer = make_chain(settings, short, copy, nobodys(data, settings.data.clients), "cpu", tolerant=True)
    update = rehearse(settings, trainer, method.schedule.occupied.events[0], start)
    return form_of(start if update is None else update.model)


def nobodys(data: Dataset, clients: int) -> Population:
    """Return clients that all hold the same two dummy samples of the data's form."""
    inputs, targets = (np.zeros((2, *each.shape[1:]), each.dtype) for each in (data.inputs, data.targets))
    blank = Dataset("nobody's", inputs, targets, inputs, targets, data.classes, data.scale, data.standard, data.loss)
    return Population(blank, np.tile(np.arange(2, dtype=np.int32), clients), 2 * np.arange(clients + 1))
