"""Which run a folder or a checkpoint is of: the settings, and the executor, that its bits and rows depend on."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w
from pydantic import BaseModel

from atoll.engine.cohorts import Executor
from atoll.settings.experiment_file import Table, resolved
from atoll.settings.sections import MAY_DIFFER, Settings
from atoll.support.wording import show


@dataclass(frozen=True)
class Fingerprint:
    """Which run a checkpoint is of; one of another run is refused.

    Attributes:
        seed: what its random numbers are derived from.
        settings: digest of the settings that its bits depend on, the seed among them.
        executor: the executor whose bits these are.
    """

    seed: int
    settings: str
    executor: str


def fingerprint_of(settings: Settings, executor: Executor, replayed: str | None = None) -> Fingerprint:
    """Return what a run's bits come from; `replayed` is the checksum of the schedule that it replays, if it does."""
    own = digest(settings)
    whole = own if replayed is None else hashlib.sha256((own + replayed).encode()).hexdigest()
    return Fingerprint(settings.seed, whole, executor.bits)


def free_settings(section: type[BaseModel] = Settings, prefix: str = "") -> frozenset[str]:
    """Return the settings that change neither a run's bits nor its rows, so that it may go on with other values.

    >>> sorted(key for key in free_settings() if key.startswith("data."))
    ['data.fetch', 'data.root']
    """
    free: set[str] = set()
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            free |= free_settings(inner, f"{prefix}{name}.")
        elif MAY_DIFFER in field.metadata:
            free.add(prefix + name)
    return frozenset(free)


def digest(settings: Settings) -> str:
    """Return a checksum of the settings that a run's bits or rows depend on, without those at their defaults.

    So a checkpoint stays valid when a later version of Atoll has more settings; a default that has changed since shows
    in the run's settings (`differences`).
    """
    chosen = settings.model_dump(exclude_none=True, exclude_defaults=True)
    values = {key: value for key, value in flatten(chosen).items() if key not in free_settings()}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def differences(before: Mapping[str, Any], settings: Settings) -> str:
    """Name all settings in which a run's table differs from these, with both values; else empty.

    Those that may differ do not count, nor do those that the table lacks, since they came with a later version of
    Atoll, and that are at their defaults.
    """
    old, new = flatten(before), flatten(as_written(settings))
    free = free_settings() | (new.keys() - old.keys() - flatten(settings.model_dump(exclude_defaults=True)).keys())
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in free)
    return ", ".join(f"{key} was {show(old.get(key))}, is now {show(new.get(key))}" for key in differing)


def as_written(settings: Settings) -> Table:
    """Return settings as they are read from the file that a run's folder keeps of them."""
    return tomllib.loads(tomli_w.dumps(resolved(settings)))


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table with dotted keys.

    >>> flatten({"local": {"lr": 0.1}})
    {'local.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
