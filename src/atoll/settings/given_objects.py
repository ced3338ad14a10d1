"""Functions and data sets that a script or notebook passes directly, instead of a name in the settings.

Settings hold only names, so that they can be written to a file. An object gets a name by which `plugins.resolve` finds
it again in this process.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from atoll.data.dataset import Dataset
from atoll.methods.parts.kind import kind_of
from atoll.settings.choices import CHOICES, NamedChoice
from atoll.settings.plugins import remember
from atoll.support.errors import InputError
from atoll.support.wording import show

_LAYERS = ("panels", "runs")


def named(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of settings with objects replaced by names.

    An object or a name in place of a whole section is the section's main choice: its clustering, method, model or data
    set.
    """
    made = dict(table)
    for choice in CHOICES:
        held = made.get(choice.section)
        if choice.section == "data":
            _refuse_torch(held)
        if choice.default is not None and (isinstance(held, str) or _is_object(held)):
            made[choice.section] = held = {choice.key: held}
        if isinstance(held, Mapping) and _is_object(held.get(choice.key)):
            made[choice.section] = {**held, choice.key: _name(choice, held[choice.key])}
        elif isinstance(held, Mapping) and choice.default is None and isinstance(held.get(choice.key), list | tuple):
            names = [_name(choice, each) if _is_object(each) else each for each in held[choice.key]]
            made[choice.section] = {**held, choice.key: names}
    run = made.get("run")
    probes = run.get("probes") if isinstance(run, Mapping) else None
    if callable(probes):
        raise InputError(f"run.probes = {show(probes)}: must be in a list, also if it is the only one")
    if isinstance(probes, list | tuple):
        made["run"] = {**made["run"], "probes": [remember(each) if callable(each) else each for each in probes]}
    for key in _LAYERS:
        if isinstance(made.get(key), list | tuple):
            made[key] = [named(each) if isinstance(each, Mapping) else each for each in made[key]]
    return made


def _refuse_torch(held: Any) -> None:
    """Refuse a data set of PyTorch, whose samples would have to be read first."""
    given = held.get("dataset") if isinstance(held, Mapping) else held
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, str | Mapping | Dataset):
        raise InputError(
            f"data: is {type(given).__name__!r}, not an atoll.Dataset; read it with atoll.from_torch(train, test), or "
            "atoll.from_pandas(frame, target=...)"
        )


def _is_object(value: Any) -> bool:
    return callable(value) or isinstance(value, Dataset) or hasattr(value, "state_dict")


def _name(choice: NamedChoice, given: Any) -> str:
    """Return a function's built-in name, or one under which it is remembered."""
    if callable(getattr(given, "state_dict", None)) and not isinstance(given, type):
        kind = type(given).__name__
        told = f"is a module, {kind!r}; give a function that returns one, so that each seed draws its own weights"
        if not callable(given):  # an optimiser, or its scheduler
            told = f"is an object, {kind!r}, made for one model; give its class or a function that returns one"
        raise InputError(f"{choice.setting}: {told}")
    if type(given).__hash__ is None:
        told = f"is {type(given).__name__!r}, whose objects have no hash"
        raise InputError(f"{choice.setting}: {told}; give a function, or make it a dataclass with frozen=True")
    if isinstance(given, Dataset):
        stem = re.sub(r"^(?=\d)|\W", "_", given.name)
        return remember(lambda: given, f"{stem}_{_digest(given)}")
    known = choice.functions.items()
    return next((name for name, each in known if kind_of(each).make is given), None) or remember(given)


def _digest(data: Dataset) -> str:
    """Return a checksum of a data set's contents, so that a run is not resumed with another."""
    told = hashlib.sha256()
    for field in (each for each in fields(data) if each.compare):
        value = getattr(data, field.name)
        if isinstance(value, np.ndarray):
            told.update(f"{field.name} {value.dtype} {value.shape}".encode())
            told.update(np.ascontiguousarray(value).data)
        else:
            told.update(f"{field.name} {value!r}".encode())
    return told.hexdigest()[:12]
