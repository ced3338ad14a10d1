"""Reading run folders: a run's settings and metrics as one value."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atoll.report.reading.records import (
    Columns,
    Tables,
    read_clients,
    read_records,
    read_summary,
    to_columns,
    to_tables,
    with_recovery,
)
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, reason_of, refusing
from atoll.support.requiring import require_path
from atoll.support.untrusted import read_json, read_toml
from atoll.support.wording import nearest, printable, show


@dataclass(frozen=True, eq=False)
class Run:
    """One run, as read from its folder.

    `rows` maps each column to values, float64 [rows]; missing and null are nan. It has all of `COLUMNS` and any further
    column of numbers. Times are in seconds, accuracies from 0 to 1, counts and bytes cumulative. `tables` maps each
    column of lists, as of counts by cluster, to a list or None for each row. `clients` maps each metric of single
    clients to its last values. `finished` says whether the run is complete (summary.json exists), and `own_seconds`
    whether virtual times are a custom method's own. `sweep` is the folder of the sweep or experiment where `find_runs`
    found it, if any; `groups` names planted groups; `files` has checksums of its data files.
    """

    folder: Path
    name: str
    label: str
    panel: str
    config: dict[str, Any]
    rows: Columns
    finished: bool
    tables: Tables = field(default_factory=dict)
    clients: Columns = field(default_factory=dict)
    own_seconds: bool = False
    sweep: Path | None = None
    groups: tuple[str, ...] = ()
    files: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes_sent(self) -> Floats:
        """The bytes sent up and down so far, [rows]."""
        return self.rows["bytes_up"] + self.rows["bytes_down"]


class NotBegun(InputError):
    """The run has no rows yet."""


def read_run(folder: Path | str) -> Run:
    """Read one run folder, finished or not.

    The label defaults to the run's name, and the name to the folder's. A last line cut short by a crash is ignored.
    Raises InputError if it is missing, is no run, has no rows yet (`NotBegun`), is unreadable, or has files elsewhere.
    """
    folder = require_path("folder", folder)
    if not folder.exists():
        raise InputError(f"{folder} does not exist")
    if not _is_run(folder):
        raise InputError(f"{folder} is not a run: it holds no config.toml")
    config = _read_config(folder / "config.toml")
    records = read_records(folder / "metrics.jsonl")
    if not records:
        raise NotBegun(f"{folder} has no rows yet: its metrics.jsonl is missing or empty")
    summary, last = read_summary(folder / "summary.json"), records[-1].get("event")
    name = printable(config.get("name")) or folder.resolve().name
    return Run(
        folder=folder,
        name=name,
        label=printable(config.get("label")) or name,
        panel=printable(config.get("panel")),
        config=config,
        rows=with_recovery(to_columns(records), config),
        finished=(folder / "summary.json").exists() and summary.get("final", {}).get("event", last) == last,
        tables=to_tables(records),
        clients=read_clients(folder / "clients.json"),
        own_seconds=summary.get("own_seconds") is True,
        groups=tuple(printable(each, 20) for each in told) if isinstance(told := summary.get("groups"), list) else (),
        files=found if isinstance(found := read_summary(folder / "environment.json").get("data"), dict) else {},
    )


def find_runs(paths: Iterable[Path | str]) -> list[Run]:
    """Read the runs at each path, in it, or in experiments in it, each once, with labels unique within a panel.

    The runs in a folder are in the order of its experiment.json, {"runs": [folder names]}, or else sorted by name;
    those without rows are left out. Raises InputError as `read_run` does, and for a folder without runs.
    """
    runs, faults = find_readable(paths)
    if faults:
        raise InputError(faults[0])
    return runs


def find_readable(paths: Iterable[Path | str]) -> tuple[list[Run], list[str]]:
    """Return the runs that `find_runs` finds, and a sentence for each unreadable one, which is left out.

    Raises InputError for a path without runs that have rows, and if no run is left.
    """
    if isinstance(paths, str | Path) or not isinstance(paths, Iterable):
        raise InputError(f"paths = {show(paths)}: must be a list of folders")
    runs, faults = [], list[str]()
    for path in (require_path("path", each) for each in paths):
        found, wrong = _read_below(path)
        if not found and not wrong:
            raise _why_empty(path)
        runs += found
        faults += wrong
    if not runs:
        raise InputError(faults[0] if faults else "paths: holds no folders")
    return _told_apart(runs), list(dict.fromkeys(faults))


def read_begun(paths: Iterable[Path | str]) -> tuple[list[Run], list[str]]:
    """Return what `find_readable` does, but silently skip paths that are missing or have no rows yet."""
    pairs = [_read_below(path) for path in map(Path, paths) if path.is_dir()]
    return _told_apart([run for runs, _ in pairs for run in runs]), [fault for _, faults in pairs for fault in faults]


def _read_below(path: Path) -> tuple[list[Run], list[str]]:
    """Return the runs at or below a path that have rows, and a sentence for each that cannot be read."""
    if not path.is_dir():
        raise InputError(f"{path} {'is not a run: it is a file' if path.exists() else _missing(path)}")
    folders, faults = run_folders(path)
    runs = []
    for folder in folders:
        try:
            runs.append(replace(read_run(folder), sweep=None if folder == path else folder.parent))
        except NotBegun:
            pass
        except InputError as error:
            faults.append(str(error))
    return runs, faults


def _missing(path: Path) -> str:
    """Say that a folder does not exist, and which one may be meant."""
    beside = [each.name for each in path.parent.iterdir() if each.is_dir()] if path.parent.is_dir() else []
    close = nearest(path.name, beside, cutoff=0.7)
    meant = Path("runs") / path if (Path("runs") / path).is_dir() else path.parent / close if close else None
    return "does not exist" if meant is None else f"does not exist; did you mean {meant}?"


def _why_empty(path: Path) -> InputError:
    if not (folders := run_folders(path)[0]):
        return InputError(f"{path} is not a run, and no folder in it is one: no config.toml found")
    why = "its metrics.jsonl is missing or empty" if folders == [path] else "no run in it has reached an evaluation"
    return NotBegun(f"{path} has no rows yet: {why}")


def run_folders(path: Path) -> tuple[list[Path], list[str]]:
    """Return the run folders at a path, in it, or in the experiments in it, in order; and what could not be read."""
    folders, faults = listed_folders(path)
    return list(filter(_is_run, folders)), faults


def listed_folders(path: Path) -> tuple[list[Path], list[str]]:
    """Return what `run_folders` does, and the folders of runs that an experiment lists but has not begun."""
    if _is_run(path):
        return [path], []
    if _is_experiment(path):
        return _runs_of(path)
    try:
        children = sorted(path.iterdir())
    except OSError as error:
        return [], [f"{path} cannot be read ({reason_of(error)})"]
    found, faults = [], []
    for child in children:
        runs, wrong = ([child], []) if _is_run(child) else _runs_of(child) if _is_experiment(child) else ([], [])
        found += runs
        faults += wrong
    return found, faults


def _runs_of(experiment: Path) -> tuple[list[Path], list[str]]:
    """Return the folders of an experiment's runs, in its order, or of those that are there if it cannot be read."""
    try:
        children = sorted(filter(_is_run, experiment.iterdir()))
        children = [experiment / name for name in _read_order(experiment / "experiment.json")]
    except InputError as error:
        return children, [str(error)]
    except OSError as error:
        return [], [f"{experiment} cannot be read ({reason_of(error)})"]
    return children, []


def _is_experiment(folder: Path) -> bool:
    return os.path.exists(folder / "experiment.json")


def _is_run(folder: Path) -> bool:
    return os.path.isfile(folder / "config.toml")  # Path.is_file would raise for a folder that may not be looked into


def _read_order(file: Path) -> list[str]:
    try:
        names = read_json(file, file.parent)["runs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f'{file} must hold {{"runs": [folder names]}}, but cannot be read as that') from error
    if not isinstance(names, list) or not all(isinstance(name, str) and _is_name(name) for name in names):
        raise InputError(f'{file} must hold {{"runs": [folder names]}}, but its "runs" is not a list of names')
    return names


def _is_name(text: str) -> bool:
    """Return whether this names something in a folder, and cannot lead outside it."""
    return text not in ("", ".", "..") and not {"/", "\\", "\0"} & set(text) and len(text) < 256


def _read_config(file: Path) -> dict[str, Any]:
    try:
        with refusing(f"{file} cannot be read"):
            return read_toml(file, file.parent)
    except ValueError as error:  # bad TOML and bad UTF-8 alike
        raise InputError(f"{file} is not valid TOML: {error}") from error


def _told_apart(found: Sequence[Run]) -> list[Run]:
    """Return each run once, with labels unique within a panel."""
    first: dict[Path, Run] = {}
    for run in found:
        first.setdefault(run.folder.resolve(), run)
    groups = defaultdict(list)
    for folder, run in first.items():
        groups[run.panel, run.label].append(folder)
    endings = {folder: ending for group in groups.values() for folder, ending in _endings(group).items()}
    return [replace(run, label=run.label + endings[folder]) for folder, run in first.items()]


def _endings(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the shortest path endings that distinguish the folders, in brackets; empty for a single one."""
    if len(folders) == 1:
        return {folders[0]: ""}
    depth = 1
    while len({folder.parts[-depth:] for folder in folders}) < len(folders):
        depth += 1
    return {folder: f" ({'/'.join(folder.parts[-depth:])})" for folder in folders}
