"""What a server tells of its settings, and what of it a node's owner lets count: numbers and names, never code."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field, JsonValue

from atoll.settings.sections import Settings
from atoll.support.limits import LARGEST

_KEY = r"^[a-z_]{1,40}(\.[A-Za-z_]\w{0,60})?$"
Key = Annotated[str, Field(pattern=_KEY)]
Terms = Annotated[dict[Key, JsonValue], Field(max_length=500)]
"""Settings that a client's work may depend on, by ``section.key``."""

ALLOWABLE = r"^(seed|rounds|clustering\.clusters|(model|travel|local|method)\.(\*|[A-Za-z_]\w{0,60}))$"
"""What an owner may allow: a setting, or all of a section; none that names a file, a device or a machine."""

_SECTIONS = ("model", "travel", "local", "method", "privacy", "secure")
_OTHERS = ("clustering.clusters", "data.dataset", "data.standardise", "run.precision", "run.debug")
# No colon, so that no function is named, and neither dot nor slash, so that no file is.
_WORD = re.compile(r"[A-Za-z0-9_+-]{1,40}")
_MOST_ITEMS = 1000
_SHOWN = 5
_ABSENT = object()


def announce(settings: Settings) -> dict[str, Any]:
    """Return what a server tells of its settings."""
    # Numbers that JSON has no form for become texts, which differ from any number.
    table = json.loads(json.dumps(settings.model_dump(), default=str), parse_constant=str)
    told = {"seed": table["seed"], "rounds": table["rounds"]}
    told |= {f"{section}.{key}": value for section in _SECTIONS for key, value in table[section].items()}
    told |= {path: table[(at := path.split("."))[0]][at[1]] for path in _OTHERS}
    return {key: value for key, value in told.items() if re.fullmatch(_KEY, key)}  # a method of one's own may take any


def differences(own: Settings, told: dict[str, Any]) -> list[str]:
    """Return which settings are others in an owner's copy than a server tells."""
    mine = announce(own)
    return sorted(key for key in mine.keys() | told.keys() if mine.get(key, _ABSENT) != told.get(key, _ABSENT))


def is_allowed(key: str, value: Any, allowed: Iterable[str]) -> bool:
    """Whether an owner lets a server set this; whatever is allowed, values are numbers, plain words and lists of these.

    >>> is_allowed("method.name", "ifca", ["method.*"]), is_allowed("method.name", "os:remove", ["method.*"])
    (True, False)
    """
    section, dot, _ = key.partition(".")
    return not {key, f"{section}{dot}*"}.isdisjoint(allowed) and _is_plain(value)


def change(own: Settings, told: dict[str, Any], keys: Sequence[str]) -> Settings:
    """Return an owner's settings with some as they are told; one that is not told is unset.

    Raises:
        InputError: a value is not what the setting may be, or does not go with the others.
    """
    table = own.model_dump()
    for key in keys:
        section, dot, name = key.rpartition(".")
        place = table[section] if dot else table
        if key in told:
            place[name] = told[key]
        else:
            place.pop(name, None)
    return Settings(**table)


def show(told: dict[str, Any], keys: Sequence[str]) -> str:
    """Return some of what was told, for an owner to read; whatever it is, it is short and of one line.

    >>> show({"local.lr": 0.1}, ["local.lr", "local.steps"])
    'local.lr = 0.1, local.steps unset'
    """
    texts = [f"{key} = {json.dumps(told[key])[:40]}" if key in told else f"{key} unset" for key in keys[:_SHOWN]]
    return ", ".join(texts) + (f" and {len(keys) - _SHOWN} more" if keys[_SHOWN:] else "")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _MOST_ITEMS and all(not isinstance(each, list) and _is_plain(each) for each in value)
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    # A setting that is not told has no value: unset, as `None` is.
    return value is None or (isinstance(value, bool | int | float) and abs(value) <= LARGEST)
