"""The run folder: settings, metrics, schedule, environment and summary, written so that nothing is left half done."""

import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from atoll.config import Settings, resolved
from atoll.errors import InputError, RunError
from atoll.schedules import Schedule

Row = dict[str, Any]
FORMAT = 1


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: aside first, flushed to disk, then renamed.

    Raises:
        RunError: the disk is full or read-only, or the folder cannot be written to.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def to_json(value: Any) -> bytes:
    """Return a value as indented JSON, NaN refused."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


class RunFolder:
    """The folder of one run, and its metrics file, to which one row a probe is appended."""

    def __init__(self, path: Path) -> None:
        """Name the folder; nothing is written."""
        self.path = path
        self.metrics = path / "metrics.jsonl"

    def create(self, settings: Settings, schedule: Schedule, overwrite: bool = False) -> None:
        """Make the folder with everything that is known before training.

        Raises:
            InputError: the folder exists and `overwrite` is off, or it is something other than a run.
            RunError: it cannot be written.
        """
        self._make_room(overwrite)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "checkpoint").mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {self.path}: {error.strerror or error}") from error
        write_atomically(self.path / "config.toml", tomli_w.dumps(resolved(settings)).encode())
        write_atomically(self.path / "environment.json", to_json(describe_environment(settings.seed)))
        write_schedule(self.path / "schedule.npz", schedule)
        write_atomically(self.metrics, b"")

    def _make_room(self, overwrite: bool) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise InputError(f"--out {self.path}: is a file; give the path of a new folder")
        content = {entry.name for entry in self.path.iterdir()}
        if not content:
            return
        if "config.toml" not in content:
            raise InputError(f"--out {self.path}: holds other files and no run; give the path of a new folder")
        if not overwrite:
            raise InputError(
                f"--out {self.path}: exists already; add --resume to continue it, --overwrite to replace it, "
                "or give another folder"
            )
        for name in ("summary.json", "metrics.jsonl", "config.toml"):
            (self.path / name).unlink(missing_ok=True)
        for entry in (self.path / "checkpoint").glob("*"):
            entry.unlink()

    def require_same(self, settings: Settings) -> None:
        """Refuse to go on with other settings than the run was begun with.

        Raises:
            InputError: names the settings that differ; or the folder's settings cannot be read.
        """
        try:
            before = flatten(tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"--resume: {self.path / 'config.toml'} cannot be read ({error})") from error
        now = flatten(tomllib.loads(tomli_w.dumps(resolved(settings))))
        if differing := sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)):
            told = ", ".join(f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in differing)
            raise InputError(f"--resume: {self.path} holds another experiment: {told}")

    def append(self, row: Row) -> None:
        """Append one row of metrics; if the disk is full the file keeps its whole rows.

        Raises:
            RunError: the row cannot be written.
        """
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        size = self.metrics.stat().st_size if self.metrics.exists() else 0
        try:
            with open(self.metrics, "ab", buffering=0) as file:
                written = file.write(line)
                if written != len(line):
                    raise OSError(28, "No space left on device")
        except OSError as error:
            if self.metrics.exists():
                os.truncate(self.metrics, size)
            raise RunError(f"cannot write {self.metrics}: {error.strerror or error}") from error

    def rows(self) -> list[Row]:
        """Return the whole rows of metrics so far."""
        lines = self.metrics.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def keep_rows(self, events_done: int) -> list[Row]:
        """Drop rows later than an event, and a torn last one; return those kept."""
        kept = [row for row in self.rows() if row["event"] <= events_done]
        write_atomically(self.metrics, b"".join(json.dumps(row).encode() + b"\n" for row in kept))
        return kept

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, which marks the run as finished."""
        write_atomically(self.path / "summary.json", to_json(dict(summary)))


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table with dotted keys.

    >>> flatten({"local": {"lr": 0.1}})
    {'local.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def write_schedule(path: Path, schedule: Schedule) -> None:
    """Write the schedule's table as ``.npz``: one entry an event, lists flattened with their offsets."""
    events = schedule.events
    columns: dict[str, Any] = {
        "round": [e.round for e in events],
        "seconds": [e.seconds for e in events],
        "intra_rounds": [e.intra_rounds for e in events],
        "models_down": [e.models_down for e in events],
        "models_up": [e.models_up for e in events],
    }
    lists: dict[str, list[Any]] = {
        "active": [e.active for e in events],
        "began": [e.began for e in events],
        "staleness": [e.staleness for e in events],
        "cohort": [e.cohort for e in events],
        "weights": [e.weights for e in events],
        "clusters": [np.full(len(e.cohort), -1) if e.clusters is None else e.clusters for e in events],
    }
    for name, rows in lists.items():
        columns[name] = np.concatenate([np.asarray(row) for row in rows]) if rows else np.empty(0)
        columns[f"{name}_offsets"] = np.cumsum([0, *map(len, rows)])
    mixes = [{"server": _mix(e.server), "starts": [[c, _mix(m)] for c, m in e.starts]} for e in events]
    columns["mixes"] = np.frombuffer(json.dumps(mixes).encode(), np.uint8)
    aside = path.with_name(f".{path.name}.part.npz")
    try:
        np.savez_compressed(aside, **columns)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def describe_environment(seed: int) -> dict[str, Any]:
    """Return versions, machine, seed and git revision of this run."""
    packages = ("atoll", "torch", "numpy", "scipy", "scikit-learn", "pydantic")
    return {
        "format": FORMAT,
        "seed": seed,
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in packages},
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cpus": os.cpu_count()},
        "git": _git_revision(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    try:
        result = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def _mix(mix: Any) -> Any:
    return None if mix is None else {"server": mix.server, "published": [list(pair) for pair in mix.published]}
