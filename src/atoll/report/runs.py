"""Reading run folders: the settings and probes that a run leaves behind, as one value."""

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.files import whole_lines

Columns: TypeAlias = dict[str, Floats]
Tables: TypeAlias = dict[str, list[list[Any] | None]]

COLUMNS = (
    "event",
    "round",
    "virtual_time",
    "wall_time",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "client_updates",
    "bytes_up",
    "bytes_down",
)
"""The columns every run has; a column that the run did not record is all nan."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run, as its folder has it.

    `rows` maps a column to its values, one a probe, as float64 of shape [probes]; missing and null are nan.
    It holds all of `COLUMNS` and any further column of numbers. Times are in seconds, accuracies between 0
    and 1, counts and bytes cumulative. `tables` maps a column of lists, such as counts per cluster, to them,
    one a probe; missing and null are None. `clients` maps a column to what the last probe measured of single
    clients. `finished` says whether the run is complete (its summary.json exists).
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


def read_run(folder: Path | str) -> Run:
    """Read one run folder, finished or under way.

    The label falls back to the run's name, and the name to the folder's. A last line cut short by a crash is
    ignored. Raises InputError for a folder that does not exist, is not a run, has no rows yet, or holds what
    cannot be read.
    """
    folder = Path(folder)
    if not folder.exists():
        raise InputError(f"{folder} does not exist.")
    if not _is_run(folder):
        raise InputError(f"{folder} is not a run: it holds no config.toml.")
    config = _read_config(folder / "config.toml")
    records = _read_records(folder / "metrics.jsonl")
    if not records:
        raise InputError(f"{folder} has no rows yet: its metrics.jsonl is missing or empty.")
    name = str(config.get("name") or folder.resolve().name)
    return Run(
        folder=folder,
        name=name,
        label=str(config.get("label") or name),
        panel=str(config.get("panel") or ""),
        config=config,
        rows=_to_columns(records),
        finished=(folder / "summary.json").exists(),
        tables=_to_tables(records),
        clients=_read_clients(folder / "clients.json"),
    )


def find_runs(paths: Iterable[Path | str]) -> list[Run]:
    """Read the runs at or one level below each path, in order, each once, with labels unique within a panel.

    The runs below a folder come in the order of its experiment.json, {"runs": [folder names]}, or else sorted
    by name; those that have not started are left out. Raises InputError as `read_run` does, and for a folder
    without any run.
    """
    folders = {found.resolve(): found for path in paths for found in _run_folders(Path(path))}
    return _with_unique_labels([read_run(folder) for folder in folders.values()])


def overlay(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of all panels as those of one, called by panel and label, so that all are compared."""
    return [_out_of_panel(run) for run in runs]


def _out_of_panel(run: Run) -> Run:
    def joined(label: str) -> str:
        return ", ".join(dict.fromkeys(filter(None, (run.panel, label))))

    config = {**run.config, "panel": "", "label": joined(str(run.config.get("label") or run.name))}
    return replace(run, panel="", label=joined(run.label), config=config)


def _run_folders(path: Path) -> list[Path]:
    if not path.is_dir() or _is_run(path):
        return [path]
    order = path / "experiment.json"
    children = [path / name for name in _read_order(order)] if order.exists() else sorted(path.iterdir())
    runs = [child for child in children if _is_run(child)]
    if not runs:
        raise InputError(f"{path} is not a run, and no folder in it is one: no config.toml found.")
    started = [run for run in runs if _read_records(run / "metrics.jsonl")]
    if not started:
        raise InputError(f"{path} has no rows yet: none of its {len(runs)} runs has reached its first probe.")
    return started


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file()


def _read_order(file: Path) -> list[str]:
    try:
        names = json.loads(file.read_bytes())["runs"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f'{file} must hold {{"runs": [folder names]}}, but cannot be read as that.') from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f'{file} must hold {{"runs": [folder names]}}, but its "runs" is not a list of names.')
    return names


def _read_config(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # bad TOML and bad UTF-8 alike
        raise InputError(f"{file} is not valid TOML: {error}.") from error


def _read_records(file: Path) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(whole_lines(file) if file.exists() else [], start=1):
        try:
            records.append(_parse_record(line))
        except ValueError as error:
            raise InputError(f"{file}, line {number}: {error}.") from error
    return records


def _read_clients(file: Path) -> Columns:
    """Return what was measured of single clients last; nothing where the file is missing or damaged."""
    try:
        columns = json.loads(file.read_bytes())
        found = {name: np.array(each["values"], np.float64) for name, each in columns.items() if isinstance(each, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: values for name, values in found.items() if values.ndim == 1 and values.size}


def _parse_record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError("the line is torn or is not JSON") from error
    if not isinstance(record, dict):
        raise ValueError("a row must be a JSON object")
    for column in COLUMNS:
        if not _is_number_or_none(record.get(column)):
            raise ValueError(f"{column} must be a number or null, not {record[column]!r}")
    return record


def _to_columns(records: Sequence[dict[str, Any]]) -> Columns:
    names = dict.fromkeys([*COLUMNS, *(name for record in records for name in record)])
    values = {name: [record.get(name) for record in records] for name in names}
    # Further keys may hold lists (per-cluster values, see _to_tables) or text, which are no columns of numbers.
    return {
        name: np.array([np.nan if value is None else value for value in column], dtype=np.float64)
        for name, column in values.items()
        if all(map(_is_number_or_none, column))
    }


def _to_tables(records: Sequence[dict[str, Any]]) -> Tables:
    names = dict.fromkeys(name for record in records for name, value in record.items() if isinstance(value, list))
    values = {name: [record.get(name) for record in records] for name in names}
    return {
        name: column
        for name, column in values.items()
        if all(value is None or isinstance(value, list) for value in column)
    }


def _is_number_or_none(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _with_unique_labels(runs: Sequence[Run]) -> list[Run]:
    groups = defaultdict(list)
    for run in runs:
        groups[run.panel, run.label].append(run.folder.resolve())
    endings = {folder: ending for group in groups.values() for folder, ending in _endings(group).items()}
    return [
        replace(run, label=f"{run.label} ({ending})") if (ending := endings[run.folder.resolve()]) else run
        for run in runs
    ]


def _endings(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the shortest ends of the paths that distinguish them; nothing for a single path."""
    if len(folders) == 1:
        return {folders[0]: ""}
    depth = 1
    while len({folder.parts[-depth:] for folder in folders}) < len(folders):
        depth += 1
    return {folder: "/".join(folder.parts[-depth:]) for folder in folders}
