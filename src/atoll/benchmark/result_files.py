"""Result files: one per suite and method, with its trials and its runs' curves; anybody's can be put beside others.

A file is named SUITE/METHOD.json. An entry names the digest of its settings, so one that was made with others does not
count, and the commit that it ran at.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atoll.benchmark.entrants import Entrant
from atoll.report.reading.runs import Run, read_run
from atoll.reproduce.kept_runs import digest_anywhere
from atoll.settings.validation import Settings
from atoll.support.environment import describe_environment
from atoll.support.errors import InputError
from atoll.support.files import make_folder, write_atomically
from atoll.support.untrusted import read_json

FORMAT = 1
COSTS = ("client_updates", "virtual_time", "bytes")
MEASURED = ("client_score", "client_score_std", "p10_client_score", "new_client_score", "ari")
_DIGITS = 6


@dataclass(frozen=True)
class Entry:
    """A trial or a run.

    Attributes:
        digest: of its settings.
        commit: of the code that ran it; empty: unknown.
        seed: its seed.
        changes: what its method was tuned to, as ``section.key=value`` texts.
        columns: its rows, by column: costs so far, and what was measured.
    """

    digest: str
    commit: str
    seed: int
    changes: list[str]
    columns: dict[str, list[float | None]]

    def last(self, column: str) -> float | None:
        """Return the last value of a column; None if nothing was measured."""
        known = [value for value in self.columns.get(column, ()) if value is not None]
        return known[-1] if known else None


@dataclass
class ResultFile:
    """What is known of a method on a suite; or why it cannot take the suite, `left_out`."""

    suite: str
    method: str
    title: str
    left_out: str = ""
    trials: list[Entry] = field(default_factory=list)
    runs: list[Entry] = field(default_factory=list)

    @property
    def best(self) -> Entry | None:
        """The trial with the best score at its end; None if none came to an end."""
        known = [each for each in self.trials if each.last(MEASURED[0]) is not None]
        return max(known, key=lambda each: (each.last(MEASURED[0]) or 0.0, each.changes), default=None)

    @property
    def counted(self) -> list[Entry]:
        """The runs with what the best trial had, in the order of their seeds."""
        best = self.best
        return sorted((each for each in self.runs if best and each.changes == best.changes), key=lambda each: each.seed)

    @property
    def why_missing(self) -> str:
        """Why the method is in no table; empty if it is."""
        failed = [str(each.seed) for each in self.counted if each.last(MEASURED[0]) is None]
        return self.left_out or (f"failed with seed {', '.join(failed)}" if failed else "")

    def find(self, digest: str) -> Entry | None:
        """Return the trial or run of these settings."""
        return next((each for each in (*self.trials, *self.runs) if each.digest == digest), None)

    def write(self, place: Path) -> None:
        """Write the file below a folder, its entries in a fixed order, one a line."""
        self.trials.sort(key=lambda each: each.changes)
        self.runs.sort(key=lambda each: (each.seed, each.digest))
        told = {name: getattr(self, name) for name in ("suite", "method", "title", "left_out")}
        head = json.dumps({"format": FORMAT, **told})
        lists = (
            f'"{name}": [\n' + ",\n".join(json.dumps(asdict(each)) for each in getattr(self, name)) + "\n]"
            for name in ("trials", "runs")
        )
        file = file_of(place, self.suite, self.method)
        make_folder(file.parent)
        write_atomically(file, f"{head[:-1]},\n{', '.join(lists)}}}\n".encode())


def file_of(place: Path, suite: str, method: str) -> Path:
    """Return the path of a result file."""
    return place / suite / f"{method.replace(':', '.')}.json"


def gather(places: Sequence[Path], suite: str, entrant: Entrant) -> ResultFile:
    """Return what the folders' files know of a method on a suite; the first folder's entries come first.

    Raises:
        InputError: if a file cannot be read as a result file.
    """
    found = ResultFile(suite, entrant.name, entrant.title)
    for file in (file_of(place, suite, entrant.name) for place in places):
        if file.exists():
            add(found, read_result(file))
    return found


def add(found: ResultFile, other: ResultFile) -> None:
    """Add another file's entries, but those of settings that are there already."""
    found.left_out = found.left_out or other.left_out
    found.trials += [each for each in other.trials if found.find(each.digest) is None]
    found.runs += [each for each in other.runs if found.find(each.digest) is None]


def methods_in(places: Sequence[Path], suite: str) -> Iterator[ResultFile]:
    """Yield what the folders know of each method on a suite."""
    found: dict[str, ResultFile] = {}
    for file in (file for place in places for file in sorted((place / suite).glob("*.json"))):
        own = read_result(file)
        add(found.setdefault(own.method, ResultFile(suite, own.method, own.title)), own)
    yield from found.values()


def read_result(file: Path) -> ResultFile:
    """Read a result file.

    Raises:
        InputError: if it cannot be read as one.
    """
    try:
        held = read_json(file, file.parent)
        if held.pop("format") != FORMAT or held["suite"] != file.parent.name:
            raise ValueError(f"it must have format = {FORMAT}, and its folder's suite")
        lists = {name: [_checked(Entry(**each)) for each in held.pop(name)] for name in ("trials", "runs")}
        suite, method, title, why = (str(held[name]) for name in ("suite", "method", "title", "left_out"))
        return ResultFile(suite, method, title, why, lists["trials"], lists["runs"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} cannot be read as a result file ({error}); remove it, or make it again") from error


def _checked(entry: Entry) -> Entry:
    lengths = {len(values) for values in entry.columns.values()}
    numbers = [value for values in entry.columns.values() for value in values]
    known = all(value is None or isinstance(value, int | float) for value in numbers)
    if len(lengths) != 1 or not known or not {*COSTS, MEASURED[0]} <= entry.columns.keys():
        raise ValueError(f"an entry needs columns of numbers of one length: {', '.join((*COSTS, MEASURED[0]))}")
    return entry


def entry_of(made: Settings, changes: Sequence[str], folder: Path | None) -> Entry:
    """Return the entry of a finished run, whose settings were these before they were cut; None: it failed."""
    failed: dict[str, list[float | None]] = {**{name: [0.0] for name in COSTS}, MEASURED[0]: [None]}
    columns = failed if folder is None else {name: _shortened(values) for name, values in _columns(read_run(folder))}
    commit = describe_environment(0)["git"] or ""
    return Entry(digest_anywhere(made), str(commit), made.seed, list(changes), columns)


def _columns(run: Run) -> Iterator[tuple[str, Any]]:
    rows = {**run.rows, "bytes": run.rows["bytes_up"] + run.rows["bytes_down"]}
    yield from ((name, rows[name]) for name in (*COSTS, *MEASURED) if name in rows and np.isfinite(rows[name]).any())


def _shortened(values: Any) -> list[float | None]:
    """Return a column with six digits, which is more than seeds agree on."""
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in values]
