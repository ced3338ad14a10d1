"""Runs as tables for other programs: a row for each evaluation, client or event, with the settings that differ."""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.report.reading.records import is_number
from atoll.report.reading.runs import Run, find_runs, run_folders
from atoll.report.tables.formats import csv_table
from atoll.runs.fingerprint import flatten
from atoll.runs.run_files import HAPPENED
from atoll.schedules.schedule_files import read_schedule
from atoll.support.errors import refusing
from atoll.support.extras import load_extra
from atoll.support.requiring import require
from atoll.support.untrusted import read_json

if TYPE_CHECKING:
    from pandas import DataFrame

Level = Literal["probes", "clients", "events"]
Columns = dict[str, list[Any]]

DEEPEST = 3  # folders between a given path and a run
_OWN = ("run", "panel", "folder")
_SAME = ("name", "label", "panel", "description")  # already in the column `run`


def read_runs(*paths: Path | str, of: Level = "probes") -> "DataFrame":
    """Return runs as a tidy pandas frame, with a column for each setting that differs, such as ``local.lr``.

    Args:
        paths: run folders, or folders that hold runs, up to three levels down.
        of: "probes": a row for each row of metrics; "clients": a row for each client, with its last metrics; "events":
            one for each event of a run's schedule, or that happened on a fleet, with numbers of clients and models.

    Raises:
        InputError: there are no runs, one is damaged, or pandas is not installed.
    """
    require("of", of, Level)
    pd = load_extra("pandas", "pandas", "read_runs:")
    return pd.DataFrame(columns_of_runs(find_runs([each for path in paths for each in _holding(Path(path))]), of))


def columns_of_runs(runs: Sequence[Run], of: Level = "probes") -> Columns:
    """Return the columns of `read_runs`, all of the same length; missing values are None."""
    rows = {"probes": _probes, "clients": _clients, "events": _events}[of]
    differing = settings_that_differ([run.config for run in runs])
    tables = [(run, settings, rows(run)) for run, settings in zip(runs, differing, strict=True)]
    names = dict.fromkeys(name for _, _, table in tables for name in table)
    columns: Columns = {name: [] for name in (*_OWN, *dict.fromkeys(key for each in differing for key in each), *names)}
    for run, settings, table in tables:
        count = len(next(iter(table.values()), []))
        told = {"run": run.label, "panel": run.panel, "folder": str(run.folder), **settings}
        for name, column in columns.items():
            column += [told[name]] * count if name in told else table.get(name, [None] * count)
    return columns


def settings_that_differ(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each run's settings that are not the same in all, by path; lists as text."""
    flat = [{path: _plain(value) for path, value in flatten(config).items()} for config in configs]
    paths = dict.fromkeys(path for each in flat for path in each if path not in _SAME)
    chosen = [path for path in paths if len({repr(each.get(path)) for each in flat}) > 1]
    return [{path: each.get(path) for path in chosen} for each in flat]


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | str) or is_number(value) else str(value)


def _probes(run: Run) -> Columns:
    return {name: [value if np.isfinite(value) else None for value in each.tolist()] for name, each in run.rows.items()}


def _clients(run: Run) -> Columns:
    """Return the last metrics of single clients, by client number."""
    path = run.folder / "clients.json"
    with refusing(f"{path}: cannot be read", ValueError, KeyError, TypeError, AttributeError):
        told = read_json(path, run.folder) if path.exists() else {}
        found = {
            name: dict(zip(each["clients"], each["values"], strict=True))
            for name, each in told.items()
            if name.isidentifier() and isinstance(each, dict)
        }
        clients = sorted({client for each in found.values() for client in each})
        if not all(isinstance(client, int) for client in clients):
            raise ValueError("clients are whole numbers")
    measured = {name: [each.get(client) for client in clients] for name, each in found.items()}
    return {"client": clients, **{name: [v if is_number(v) else None for v in each] for name, each in measured.items()}}


def _events(run: Run) -> Columns:
    planned, path = run.folder / "schedule.npz", run.folder / HAPPENED
    path = path if path.exists() else planned
    has_any = path.exists() and (path is planned or path.read_bytes().count(b"\n") > 1)  # the first is its head
    events = read_schedule(path, "read_runs:").events if has_any else ()
    return {
        "event": [event.index for event in events],
        "round": [event.round for event in events],
        "virtual_time": [float(event.seconds) for event in events],
        "clusters": [len(event.active) for event in events],
        "clients": [len(event.cohort) for event in events],
        "most_stale": [max(event.staleness, default=0) for event in events],
        "models_down": [event.models_down for event in events],
        "models_up": [event.models_up for event in events],
    }


def _holding(path: Path, depth: int = 0) -> Iterable[Path]:
    """Return the folders at or below a path that hold runs; the path itself if there are none."""
    is_open = path.is_dir() and os.access(path, os.R_OK | os.X_OK)
    if not is_open or run_folders(path)[0] == [path] or (path / "experiment.json").exists():
        return [path]
    below = [each for each in sorted(path.iterdir()) if each.is_dir()] if depth <= DEEPEST else []
    found = [place for each in below for place in _holding(each, depth + 1) if run_folders(place)[0]]
    return found or ([path] if depth == 0 else [])


def columns_as_csv(columns: Columns) -> str:
    """Return columns as comma-separated values; None is empty."""
    return csv_table([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def columns_as_parquet(columns: Columns) -> bytes:
    """Return columns as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: pa.array(_alike(values)) for name, values in columns.items()}
    stream = io.BytesIO()
    pq.write_table(pa.table(arrays), stream)
    return stream.getvalue()


def _alike(values: list[Any]) -> list[Any]:
    """Return values of one type: numbers, booleans, or else all as text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    make = float if kinds == {int, float} else str
    return [None if value is None else make(value) for value in values]
