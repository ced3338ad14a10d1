"""The input and the interface of trackers."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from atoll.runs.fingerprint import flatten
from atoll.runs.run_folder import Row
from atoll.settings.experiment_file import resolved
from atoll.settings.validation import Settings
from atoll.support.extras import load_extra
from atoll.support.files import to_json, write_atomically
from atoll.support.untrusted import read_json

MARK = "round"  # a number that every row has


@dataclass(frozen=True)
class Tracked:
    """The run that a tracker is opened for.

    Attributes:
        folder: the tracker's own folder, in the run's folder; it exists.
        goes_on: whether to continue what an earlier process logged for this run; if not, the folder is empty.
    """

    settings: Settings
    folder: Path
    goes_on: bool

    @property
    def title(self) -> str:
        """The run's title: its panel and label, or else the experiment's name."""
        return " ".join(filter(None, (self.settings.panel, self.settings.label))) or self.settings.name

    def note(self) -> dict[str, str]:
        """Return what `write_note` wrote, or an empty table."""
        with suppress(OSError, ValueError):
            note = read_json(self.folder / "run.json", self.folder)
            return note if isinstance(note, dict) else {}
        return {}

    def write_note(self, **values: str) -> None:
        """Record how the tracker identifies the run, for a process that resumes it."""
        write_atomically(self.folder / "run.json", to_json(values))


class Opened(Protocol):
    """A tracker that a run's rows are logged to."""

    logged: int
    """The last event whose row is already logged, -1 if there is none."""

    def log(self, event: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of an event's row."""

    def close(self, summary: Mapping[str, float] | None) -> None:
        """Log the summary (None for a run that stopped early), and write everything."""


def hyperparameters(settings: Settings) -> dict[str, bool | int | float | str]:
    """Return all settings that are set, by their dotted names; lists and tables as JSON."""
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in flatten(resolved(settings)).items()
    }


def numbers_of(row: Row) -> dict[str, float]:
    """Return the numbers of a row by name, those of a list as ``name/0`` and so on; missing values are left out.

    Lists of lists, such as `confusion`, are left out too: a tracker would draw a curve for each number.
    """
    numbers: dict[str, float] = {}
    for name, value in row.items():
        parts = {f"{name}/{i}": part for i, part in enumerate(value)} if isinstance(value, list) else {name: value}
        numbers |= {key: float(part) for key, part in parts.items() if isinstance(part, int | float)}
    return numbers


def import_extra(module: str, extra: str) -> Any:
    """Import a module of a tracker's package; an error names the extra to install."""
    return load_extra(module, extra, f"run.trackers: {extra}", package=f"the package {extra}")
