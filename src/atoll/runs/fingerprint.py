"""Which run a folder or a checkpoint is of: the settings, and the executor, that its bits and rows depend on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from atoll.engine.cohorts import Executor
from atoll.experiment.file import resolved
from atoll.experiment.settings import MAY_DIFFER, Settings
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
    """Return a checksum of the settings that a run's bits or rows depend on."""
    values = {key: value for key, value in flatten(resolved(settings)).items() if key not in free_settings()}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Name all settings in which two tables differ, with both values, except those that may differ; else empty.

    >>> differences({"seed": 1, "local": {"lr": 0.1}}, {"seed": 2, "local": {}, "label": "a"})
    'local.lr was 0.1, is now unset, seed was 1, is now 2'
    """
    old, new, free = flatten(before), flatten(now), free_settings()
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in free)
    return ", ".join(f"{key} was {show(old.get(key))}, is now {show(new.get(key))}" for key in differing)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table with dotted keys.

    >>> flatten({"local": {"lr": 0.1}})
    {'local.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
