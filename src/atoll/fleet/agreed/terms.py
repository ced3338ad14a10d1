"""Settings that a server announces, and which of them a node's owner accepts: numbers and names, never code."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field, JsonValue

from atoll.settings.file_paths import PATHS
from atoll.settings.validation import Settings
from atoll.support.limits import LARGEST

_KEY = r"^[a-z_]{1,40}(\.[A-Za-z_]\w{0,60})?$"
Key = Annotated[str, Field(pattern=_KEY)]
Terms = Annotated[dict[Key, JsonValue], Field(max_length=500)]
"""Settings that a client's work may depend on, by ``section.key``."""

ALLOWABLE = rf"^(seed|rounds|clustering\.clusters|(model|travel|local|method)\.(\*|(?!({PATHS})$)[A-Za-z_]\w{{0,60}}))$"
"""What an owner may allow: a setting or a whole section, but nothing that names a file, a device or a machine."""

_SECTIONS = ("model", "travel", "local", "method", "privacy", "secure")
_OTHERS = ("clustering.clusters", "data.dataset", "data.augment", "data.standardise", "run.precision", "run.debug")
# Without a colon no function can be named, without dots and slashes no file.
_WORD = re.compile(r"[A-Za-z0-9_+-]{1,40}")
_MOST_ITEMS = 1000
_SHOWN = 5
_ABSENT = object()


def announce(settings: Settings) -> dict[str, Any]:
    """Return the settings that a server announces."""
    # Numbers without a JSON form become strings, which differ from any number.
    table = json.loads(json.dumps(settings.model_dump(), default=str), parse_constant=str)
    told = {"seed": table["seed"], "rounds": table["rounds"]}
    told |= {f"{section}.{key}": value for section in _SECTIONS for key, value in table[section].items()}
    told.pop("model.start")  # the server's own: nodes receive the model
    told |= {path: table[(at := path.split("."))[0]][at[1]] for path in _OTHERS}
    return {key: value for key, value in told.items() if re.fullmatch(_KEY, key)}  # user methods may take any


def differences(own: Settings, told: dict[str, Any]) -> list[str]:
    """Return the settings in which an owner's copy differs from a server's announcement."""
    mine = announce(own)
    return sorted(key for key in mine.keys() | told.keys() if mine.get(key, _ABSENT) != told.get(key, _ABSENT))


def is_allowed(key: str, value: Any, allowed: Iterable[str]) -> bool:
    """Return whether an owner lets a server set this; values must be numbers, plain words, or lists of these."""
    is_named = not {key, f"{key.partition('.')[0]}.*"}.isdisjoint(allowed)
    return is_named and re.fullmatch(ALLOWABLE, key) is not None and _is_plain(value)


def change(own: Settings, told: dict[str, Any], keys: Sequence[str]) -> Settings:
    """Return an owner's settings with some replaced by announced ones; one that is not announced is unset."""
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
    """Return announced settings in one short line for the owner."""
    texts = [f"{key} = {json.dumps(told[key])[:40]}" if key in told else f"{key} unset" for key in keys[:_SHOWN]]
    return ", ".join(texts) + (f" and {len(keys) - _SHOWN} more" if keys[_SHOWN:] else "")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _MOST_ITEMS and all(not isinstance(each, list) and _is_plain(each) for each in value)
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    # A setting that is not announced is unset, like `None`.
    return value is None or (isinstance(value, bool | int | float) and abs(value) <= LARGEST)
