"""What server and nodes must agree on: settings, of which each has a copy of its own, and the form of a model."""

import hashlib
import json
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from atoll.data.datasets import Dataset, Standard
from atoll.experiment.choices import method_kind
from atoll.experiment.settings import FaultSettings, MethodSettings, Settings
from atoll.local.models import Form, form_of
from atoll.local.rule import LocalRule
from atoll.local.task import ClientTask
from atoll.local.trainer import descend
from atoll.local.weights import read_model
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
    """

    digest: str
    form: Form
    clients: int
    classes: int = 0


def agree(settings: Settings, data: Dataset, module: nn.Module, rule: LocalRule) -> Agreement:
    """Return what the owner of these settings expects of the other side; `rule` is the method's.

    Raises:
        InputError: the settings cannot run on a fleet.
    """
    require_fleet(settings)
    digest = digest_of(settings, DataForm.of(data))
    return Agreement(digest, _answer_form(rule, module), settings.data.clients, data.classes)


def require_fleet(settings: Settings) -> None:
    """Refuse settings that make no sense with clients on machines of their own.

    Raises:
        InputError: names the setting.
    """
    name = settings.method.name
    if why := method_kind(settings).why_one_place:
        raise InputError(f"method.name = {name!r}: does not go with run.executor = 'fleet', {why}")
    faults = settings.faults
    simulated = ("dropout", "attackers", "slots_per_day")
    if in_use := [key for key in simulated if getattr(faults, key) != FaultSettings.model_fields[key].default]:
        raise InputError(
            f"faults.{in_use[0]} = {getattr(faults, in_use[0])}: is for simulation; with run.executor = 'fleet' faults "
            "are those that happen"
        )


def digest_of(settings: Settings, form: DataForm) -> str:
    """Return a checksum of all that a client's work depends on, so that two sides can tell whether they agree.

    These are the seed, `model`, `local`, the form of the data, of `method` its name, beta and resample (all of it, and
    the rounds, where the method is one's own; the rounds also where data are split for each of them), and of `run`
    precision and debug.
    """
    run = dict(settings.run)
    needs_rounds = settings.method.get("resample") or ":" in settings.method.name
    agreed: dict[str, Any] = {
        "seed": settings.seed,
        "rounds": settings.rounds if needs_rounds else None,
        "model": settings.model.model_dump(),
        "local": settings.local.model_dump(),
        "method": _of_clients(settings.method),
        "run": {key: run[key] for key in _OF_RUN},
        "data": asdict(form),
    }
    return hashlib.sha256(json.dumps(agreed, sort_keys=True, default=str).encode()).hexdigest()


def _of_clients(method: MethodSettings) -> dict[str, Any]:
    """Return what a client's work depends on in ``[method]``: all of a user's own, some of ours."""
    return {key: value for key, value in dict(method).items() if ":" in method.name or key in _OF_METHOD}


def _answer_form(rule: LocalRule, module: nn.Module) -> Form:
    """Return the form of what a client sends back; a step on a copy of the module shows what the rule carries."""
    copy = deepcopy(module)
    start, parameters = read_model(copy), dict(copy.named_parameters())
    if not rule.carry_moments:
        return form_of(start)
    nothing = sum(parameter.sum() * 0 for parameter in parameters.values())
    _, moments = descend(replace(rule, steps=1), parameters, ClientTask(0, 0, 0, 0, 0, start), [nothing])  # type: ignore[list-item]
    return form_of(start | moments)
