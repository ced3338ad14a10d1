"""What server and nodes must agree on: settings, of which each has a copy of its own, and the form of a model."""

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from atoll.codecs.coding import Coding
from atoll.data.datasets import Dataset, Standard
from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.experiment.modules import make_trainer, rehearse
from atoll.experiment.privacy import read_mechanism
from atoll.experiment.secure import secured
from atoll.experiment.update_coding import coding_of
from atoll.fleet.agreed.terms import announce
from atoll.local.models import Form, form_of
from atoll.local.weights import place, read_model
from atoll.secure.fixed import FixedPoint, masked_form
from atoll.settings.choices import method_kind
from atoll.settings.sections import FaultSettings, MethodSettings, Settings
from atoll.support.errors import InputError

_OF_METHOD = ("name", "beta", "resample")
_OF_RUN = ("precision", "debug")


@dataclass(frozen=True)
class DataForm:
    """The form of the clients' data, which a node's own samples must have.

    Attributes:
        shape: of one input.
        classes: number of classes; 0 for regression.
        scale: what an input value is multiplied by.
        standard: how inputs are standardised after that; None: they are not.
        loss: as in `Dataset`.
    """

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
        digest: of the settings that a client's work depends on.
        form: of the model that a client sends back, with the moments that its rule carries.
        clients: their number.
        classes: of their data; 0: there are none.
        keeps_state: whether clients keep a state from task to task; each does at its own node.
        told: the settings that nodes are told, which they need not go by.
        coding: codes what clients send back; None: it is sent as it is.
        tells_loss: whether clients tell their training loss.
        fixed: as what updates are summed with masks; None: each is sent by itself.
    """

    digest: str
    form: Form
    clients: int
    classes: int = 0
    keeps_state: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)
    coding: Coding | None = None
    tells_loss: bool = True
    fixed: FixedPoint | None = None

    @property
    def sent_form(self) -> Form:
        """The form of what a client sends back, coded where it is; or a node, masked."""
        if self.fixed is not None:
            return masked_form(self.form)
        return self.form if self.coding is None else self.coding.sent_form(self.form)


def agree(settings: Settings, data: Dataset, module: nn.Module, method: Method) -> Agreement:
    """Return what the owner of these settings, of which the method is made, expects of the other side.

    Raises:
        InputError: the settings cannot run on a fleet.
    """
    require_fleet(settings)
    digest, form = digest_of(settings, DataForm.of(data), method), _answer_form(settings, data, module, method)
    clients, told = settings.data.clients, announce(settings)
    tells_loss, fixed = settings.privacy.trust != "client", secured(method)
    return Agreement(
        digest, form, clients, data.classes, method.keeps_state, told, coding_of(method), tells_loss, fixed
    )


def require_fleet(settings: Settings) -> None:
    """Refuse settings that make no sense with clients on machines of their own.

    Raises:
        InputError: names the setting.
    """
    name = settings.method.name
    if why := method_kind(settings).why_one_place:
        raise InputError(f"method.name = {name!r}: does not go with run.executor = 'fleet', {why}")
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
    """Return a checksum of all that a client's work depends on, so that two sides can tell whether they agree.

    These are the seed, `model`, `local`, the form of the data, of `method` its name, beta and resample (all of it, and
    the rounds, where the method is one's own; the rounds also where data are split for each of them) and what its
    trainer is made with, of `run` precision and debug, `travel` if updates are coded, and `privacy` and `secure` if
    anything is hidden: it is no client's work, but what its owner has agreed to.
    """
    run = dict(settings.run)
    needs_rounds = settings.method.get("resample") or ":" in settings.method.name
    agreed: dict[str, Any] = {
        "seed": settings.seed,
        "rounds": settings.rounds if needs_rounds else None,
        "model": settings.model.model_dump(),
        "local": settings.local.model_dump(),
        "method": _of_clients(settings.method),
        "trainer": _of_trainer(method),
        "run": {key: run[key] for key in _OF_RUN},
        "data": asdict(form),
    }
    if settings.travel.codec != "none":
        agreed["travel"] = settings.travel.model_dump()
    if (mechanism := read_mechanism(settings)) is not None:
        agreed["privacy"] = asdict(mechanism)
    if (fixed := secured(method)) is not None:
        agreed["secure"] = asdict(fixed)
    return hashlib.sha256(json.dumps(agreed, sort_keys=True, default=str).encode()).hexdigest()


def _of_clients(method: MethodSettings) -> dict[str, Any]:
    """Return what a client's work depends on in ``[method]``: all of a user's own, some of ours."""
    return {key: value for key, value in dict(method).items() if ":" in method.name or key in _OF_METHOD}


def _of_trainer(method: Method) -> dict[str, Any]:
    """Return what the method makes of its settings for each client: numbers and texts, which both sides come to."""
    given = getattr(method.trainer, "keywords", {})  # of a `functools.partial`
    told = {key: value for key, value in given.items() if isinstance(value, bool | int | float | str | tuple)}
    return {"proximal": method.rule.proximal, "stays": method.stays, **told}


def _answer_form(settings: Settings, data: Dataset, module: nn.Module, method: Method) -> Form:
    """Return the form of what a client sends back, which a step on nobody's samples shows.

    Raises:
        InputError: the step fails.
    """
    short = replace(method, rule=replace(method.rule, steps=1, epochs=None, resample_parts=0))
    copy = place(deepcopy(module))
    start = method.sent(read_model(copy))
    trainer = make_trainer(settings, short, copy, nobodys(data, settings.data.clients), "cpu", tolerant=True)
    update = rehearse(settings, trainer, method.schedule.occupied.events[0], start)
    return form_of(start if update is None else update.model)


def nobodys(data: Dataset, clients: int) -> Population:
    """Return so many clients that all hold the same two samples, zeros of the form that the data have."""
    inputs, targets = (np.zeros((2, *each.shape[1:]), each.dtype) for each in (data.inputs, data.targets))
    blank = Dataset("nobody's", inputs, targets, inputs, targets, data.classes, data.scale, data.standard, data.loss)
    return Population(blank, np.tile(np.arange(2, dtype=np.int32), clients), 2 * np.arange(clients + 1))
