"""The rows of a run's metrics, and metrics of single clients, as columns."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from atoll.support.arrays import Floats
from atoll.support.errors import InputError, reason_of
from atoll.support.files import whole_lines
from atoll.support.untrusted import parse_json, read_json

Columns: TypeAlias = dict[str, Floats]
Tables: TypeAlias = dict[str, list[list[Any] | None]]

COLUMNS = (
    *("event", "round", "virtual_time", "wall_time", "train_loss", "test_loss", "test_accuracy"),
    *("client_updates", "bytes_up", "bytes_down"),
)
"""The columns every run has; one that the run did not record is all nan."""

MOST_COLUMNS = 256
LONGEST_NAME = 64
RECOVERY = "recovery_rounds"
_SLACK = {"test_accuracy": 0.01, "test_loss": -0.05}  # one point; 5 % of the loss before


def read_records(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics; none if the file is missing."""
    try:
        lines = whole_lines(file, file.parent)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{file} cannot be read ({reason_of(error)})") from error
    except ValueError as error:
        raise InputError(f"{file}, {error}") from error
    records, names = list[dict[str, Any]](), set[str]()
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_parse_record(line))
            if len(names := names.union(records[-1])) > MOST_COLUMNS:
                raise ValueError(f"there may be at most {MOST_COLUMNS} columns")
        except ValueError as error:
            raise InputError(f"{file}, line {number}: {error}") from error
    return records


def _parse_record(line: bytes) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise ValueError(f"the line is incomplete or not JSON ({error})") from error
    if not isinstance(record, dict):
        raise ValueError("a row must be a JSON object")
    for column in COLUMNS:
        if not _is_number_or_none(record.get(column)):
            raise ValueError(f"{column} must be a number or null, not {repr(record[column])[:40]}")
    return {name: value for name, value in record.items() if _is_column(name)}


def _is_column(name: str) -> bool:
    """Return whether this can name a column; files and axes are named after it."""
    return name.isidentifier() and len(name) <= LONGEST_NAME


def to_columns(records: Sequence[dict[str, Any]]) -> Columns:
    """Return the columns of numbers."""
    names = dict.fromkeys([*COLUMNS, *(name for record in records for name in record)])
    values = {name: [record.get(name) for record in records] for name in names}
    # Other keys may hold lists (values by cluster, see to_tables) or text.
    return {
        name: _drawable(np.array([np.nan if value is None else value for value in column], dtype=np.float64))
        for name, column in values.items()
        if all(map(_is_number_or_none, column))
    }


def _drawable(values: Floats) -> Floats:
    """Return numbers that axes can span: beyond 1e100 as nan, below 1e-100 as zero."""
    sizes = np.abs(values)
    return np.where(sizes > 1e100, np.nan, np.where(sizes < 1e-100, 0.0, values))


def to_tables(records: Sequence[dict[str, Any]]) -> Tables:
    """Return the columns of lists."""
    names = dict.fromkeys(name for record in records for name, value in record.items() if isinstance(value, list))
    values = {name: [record.get(name) for record in records] for name in names}
    return {name: column for name, column in values.items() if all(each is None or _is_list(each) for each in column)}


def _is_number_or_none(value: object) -> bool:
    return value is None or is_number(value)


def is_number(value: object) -> bool:
    """Return whether this is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_list(value: object) -> bool:
    """Return whether this is a list of numbers, or of lists, which are checked where they are drawn."""
    return isinstance(value, list) and all(isinstance(each, list) or _is_number_or_none(each) for each in value)


def read_summary(file: Path) -> dict[str, Any]:
    """Return what is said of a finished run; nothing if the file is missing or damaged."""
    try:
        summary = read_json(file, file.parent)
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) and isinstance(summary.get("final", {}), dict) else {}


def read_clients(file: Path) -> Columns:
    """Return the last metrics of single clients; nothing if the file is missing or damaged."""
    try:
        columns = read_json(file, file.parent)
        told = {name: each["values"] for name, each in columns.items() if isinstance(each, dict)}
        found = {name: _drawable(np.array(values, np.float64)) for name, values in told.items()}
        found = {name: values[np.isfinite(values)] for name, values in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    good = [name for name, values in found.items() if _is_column(name) and values.ndim == 1 and values.size]
    return {name: found[name] for name in good[:MOST_COLUMNS]}


def changes_of(config: Mapping[str, Any]) -> list[int]:
    """Return the rounds at which clients' data change in a run of these settings."""
    drift = config.get("drift")
    rounds = drift.get("rounds") if isinstance(drift, Mapping) and drift.get("kind", "none") != "none" else []
    return [each for each in rounds if type(each) is int and 0 <= each < 2**53] if isinstance(rounds, list) else []


def with_recovery(rows: Mapping[str, Floats], config: Mapping[str, Any]) -> dict[str, Floats]:
    """Return the columns of a run, with `recovery_rounds` if clients' data change in it.

    It is the mean, over the changes so far, of the rounds until the test accuracy is back within a point of that in the
    last row before (without accuracies, the test loss within 5 %), or else until the next change or the row itself.
    """
    column = next((name for name in _SLACK if np.isfinite(rows[name]).any()), "test_loss")
    rounds, values, slack = rows["round"], rows[column], _SLACK[column]
    measured = np.isfinite(values)
    firsts = [each for each in changes_of(config) if (rounds[measured] <= each).any()]
    if not firsts:
        return dict(rows)
    taken = np.zeros_like(rounds)
    for first, end in pairwise([*firsts, np.inf]):
        before = values[(rounds <= first) & measured][-1]
        met = values >= before - slack if slack > 0 else values <= before * (1 - slack)
        back = rounds[(rounds > first) & met]
        taken += np.clip(rounds, first, min(end, back[0] if len(back) else np.inf)) - first
    begun = (rounds[:, None] > firsts).sum(axis=1)
    return {**rows, RECOVERY: np.divide(taken, begun, out=np.full_like(taken, np.nan), where=begun > 0)}
