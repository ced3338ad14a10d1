"""Identifies the run of a folder or checkpoint by the settings and executor that its results depend on."""

import hashlib
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from atoll.data.named_datasets import FILES
from atoll.engine.cohorts import Executor
from atoll.settings.experiment_file import Table, as_toml
from atoll.settings.section import MAY_DIFFER
from atoll.settings.validation import Settings
from atoll.support.wording import show

LENGTH = ("rounds", "run.virtual_seconds", "run.client_updates")
"""Settings that may be raised when a run resumes, if it begins as a longer one would (`runs/going_on.py`)."""


@dataclass(frozen=True)
class Fingerprint:
    """Identifies the run of a checkpoint; those of other runs are rejected.

    Attributes:
        seed: seed of its random numbers.
        settings: digest of the settings that its results depend on, including the seed.
        executor: the executor whose rounding they have.
    """

    seed: int
    settings: str
    executor: str


def fingerprint_of(settings: Settings, executor: Executor, replayed: str | None = None) -> Fingerprint:
    """Return the fingerprint of a run; `replayed` is the checksum of the schedule it replays, if any."""
    own = digest(settings, LENGTH)
    whole = own if replayed is None else hashlib.sha256((own + replayed).encode()).hexdigest()
    return Fingerprint(settings.seed, whole, executor.bits)


def free_settings(section: type[BaseModel] = Settings, prefix: str = "") -> frozenset[str]:
    """Return the settings that do not affect results, so that a run may resume with other values."""
    free: set[str] = set()
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            free |= free_settings(inner, f"{prefix}{name}.")
        elif MAY_DIFFER in field.metadata:
            free.add(prefix + name)
    return frozenset(free)


def _free_in(settings: Settings) -> frozenset[str]:
    """Return `free_settings`, but for `data.root` where a user's own function reads it: nobody knows its files."""
    return free_settings() - ({"data.root"} if ":" in settings.data.dataset else set())


def names_data(dataset: object) -> bool:
    """Return whether `data.root` says what the data are: of a user's own files and functions."""
    return str(dataset) in FILES or ":" in str(dataset)


def digest(settings: Settings, without: Collection[str] = ()) -> str:
    """Return a checksum of the settings that a run's results depend on, without those at their defaults.

    So a checkpoint stays valid if a later version of Atoll adds settings; a changed default shows in the run's
    settings (`differences`).
    """
    chosen = settings.model_dump(exclude_defaults=True)
    ignored = _free_in(settings).union(without)
    values = {key: value for key, value in flatten(chosen).items() if key not in ignored}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def differences(before: Mapping[str, Any], settings: Settings) -> str:
    """Name all settings in which a run's table differs from these, with both values; empty if none.

    Ignores those that may differ, and those that the table lacks (from a later version of Atoll) and that are at
    their defaults.
    """
    old, new = flatten(before), flatten(as_written(settings))
    free = _free_in(settings) | (new.keys() - old.keys() - flatten(settings.model_dump(exclude_defaults=True)).keys())
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in free)
    return ", ".join(f"{key} was {show(old.get(key))}, is now {show(new.get(key))}" for key in differing)


def as_written(settings: Settings) -> Table:
    """Return settings as read from a run's config.toml."""
    return tomllib.loads(as_toml(settings))


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
