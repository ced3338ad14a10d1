"""A schedule's table as a file: written, read, and checked."""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from atoll.schedules.events import Event, Schedule
from atoll.schedules.packed import BLOCK, pack
from atoll.schedules.recorded import (
    SINGLE,
    WrittenMerge,
    first_fault,
    head_of,
    lines_of,
    read_head,
    read_lines,
    why_wrong,
    write_merge,
)
from atoll.support.errors import InputError, reason_of, refusing
from atoll.support.files import seal, whole_lines, write_atomically
from atoll.support.numpy_files import read_npz

Columns = Mapping[str, npt.NDArray[Any]]

_TUPLES, _ARRAYS = ("active", "began", "staleness"), ("cohort", "weights")  # fields of an event
_LISTS = (*_TUPLES, *_ARRAYS, "clusters", "answered")
_REALS = ("seconds", "began", "weights")
_LEAST = {"intra_rounds": 1, "clusters": -1, "drawn_as": -1, "weights": 5e-324}
_MERGES = TypeAdapter(list[WrittenMerge])


def write_schedule(path: Path, schedule: Schedule) -> None:
    """Write the schedule's table as ``.npz``: one entry per event, lists flattened with their offsets.

    Merges that events share are written once, in the JSON array `mixes`; `merge` is each event's position in it. The
    JSON object `head` has what all events have in common.
    """
    coming = iter(schedule.events)
    parts = [_columns_of(some) for some in iter(lambda: list(islice(coming, BLOCK)), [])] or [_columns_of([])]
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name in (name for name in columns if name.endswith("_offsets")):
        columns[name] = np.cumsum([0, *columns[name].tolist()])
    merges, columns["merge"] = distinct_merges(schedule)
    columns["mixes"] = np.frombuffer(json.dumps([write_merge(event) for event in merges]).encode(), np.uint8)
    columns["head"] = np.frombuffer(json.dumps(head_of(schedule) | {"rounds": schedule.rounds}).encode(), np.uint8)
    content = BytesIO()
    np.savez_compressed(content, **columns)
    write_atomically(path, content.getvalue())


def _columns_of(events: Sequence[Event]) -> dict[str, npt.NDArray[Any]]:
    """Return some events' columns; a list's offsets are the lengths of its rows."""
    lists: dict[str, list[Any]] = {
        **{name: [getattr(e, name) for e in events] for name in (*_TUPLES, *_ARRAYS)},
        "clusters": [np.full(len(e.cohort), -1) if e.clusters is None else e.clusters for e in events],
        "answered": [np.empty(0, bool) if e.answered is None else e.answered.ravel() for e in events],
    }
    return {
        **{name: np.array([getattr(e, name) for e in events]) for name in SINGLE},
        "finds_cluster": np.array([e.clusters is None for e in events]),
        "drawn_as": np.array([e.drawn_as or (-1, -1) for e in events]).reshape(-1, 2),
        **{name: np.concatenate(list(map(np.asarray, rows))) if rows else np.empty(0) for name, rows in lists.items()},
        **{f"{name}_offsets": np.array(list(map(len, rows)), np.int64) for name, rows in lists.items()},
    }


def read_schedule(path: Path, option: str = "--schedule") -> Schedule:
    """Return the schedule in ``schedule.npz``, or ``happened.jsonl`` less a torn last line; errors name `option`."""
    try:
        if path.suffix != ".npz":
            return read_lines(whole_lines(path), f"{option} {path}")
        return _schedule_of(read_npz(path))
    except KeyError as error:
        raise InputError(f"{option} {path}: is not a schedule of this version of Atoll (no {error})") from error
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be read ({reason_of(error)})") from error
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        told = first_fault(error) if isinstance(error, ValidationError) else error
        raise InputError(f"{option} {path}: is damaged, or not a schedule ({told})") from error


def keep_events(path: Path, events_done: int) -> Sequence[Event]:
    """Truncate a ``happened.jsonl`` after this many events; return those kept."""
    damaged = refusing(f"--resume: {path} is damaged", ValueError, hint="; add --overwrite to start again")
    with damaged, refusing(f"--resume: {path} cannot be read"):
        kept = whole_lines(path, path.parent)[: events_done + 1]
        if len(kept) <= events_done:
            raise ValueError(f"it ends before event {events_done - 1}")
    events = read_lines(kept, f"--resume: {path}").events if events_done else ()
    write_atomically(path, b"".join(seal(line) + b"\n" for line in kept))
    return events


def fitting(schedule: Schedule, planned: Schedule, clients: int) -> Schedule:
    """Return the schedule if it fits this experiment, whose own is `planned`."""
    most = max((int(event.cohort.max()) for event in schedule.events if len(event.cohort)), default=0)
    last = max(event.drawn_as[1] if event.drawn_as else event.round for event in schedule.events)
    repeat = [any(len(np.unique(e.cohort)) < len(e.cohort) for e in each.events) for each in (schedule, planned)]
    fault = ""
    if schedule.clusters != planned.clusters:
        fault = f"has {schedule.clusters} clusters, the experiment {planned.clusters}"
    elif most >= clients:
        fault = f"names client {most}, but the experiment has {clients} clients, counted from 0"
    elif schedule.has_server != planned.has_server:
        fault = f"has {'a' if schedule.has_server else 'no'} server, unlike the experiment's method"
    elif last > planned.events[-1].round or schedule.rounds > planned.rounds:
        fault = f"has events of round {last}, but the experiment has rounds = {planned.rounds}"
    elif (schedule.events[0].clusters is None) != (planned.events[0].clusters is None):
        fault = "and the experiment's method differ in how clients find their cluster"
    elif repeat[0] > repeat[1]:
        fault = "trains a client in several clusters of an event, unlike the experiment's method"
    if fault:
        raise InputError(f"--schedule: the schedule {fault}; give one from a run of this experiment")
    return schedule


def digest_of(schedule: Schedule) -> str:
    """Return a checksum of the whole schedule, independent of its file's format."""
    checksum = sha256(str(schedule.rounds).encode())
    for line in lines_of(schedule):
        checksum.update(json.dumps(line | {"refused": {}, "rounds_done": 0}).encode())
    return checksum.hexdigest()


def distinct_merges(schedule: Schedule) -> tuple[list[Event], list[int]]:
    """Return the first event of each distinct merge, and each event's position among them.

    Events that merge alike share the same objects, so identity is enough.
    """
    positions: dict[tuple[int, int], int] = {}
    firsts, merge = list[Event](), list[int]()
    for event in schedule.events:
        merge.append(positions.setdefault((id(event.server), id(event.starts)), len(firsts)))
        if merge[-1] == len(firsts):
            firsts.append(event)
    return firsts, merge


def _schedule_of(columns: Columns) -> Schedule:
    """Return the schedule that `write_schedule` wrote."""
    head = read_head(columns["head"].tobytes())
    _require_sound(columns)
    events: list[Event] = []
    for event in _events_of(columns):
        if fault := why_wrong(event, events[-1] if events else None, head.clusters):
            raise ValueError(f"event {len(events)}: {fault}")
        events.append(event)
    if not events:
        raise ValueError("it holds no event")
    return Schedule(pack(events), head.clusters, head.rounds, head.has_server)


def _require_sound(columns: Columns) -> None:
    """Refuse columns with numbers that no event has."""
    for name in sorted(columns.keys() - {"head", "mixes"}):
        numbers, least = columns[name], _LEAST.get(name, 0)
        if numbers.ndim != (2 if name == "drawn_as" else 1) or numbers.dtype.kind not in "biuf":
            raise ValueError(f"{name} must be a column of numbers, it holds {numbers.dtype} of shape {numbers.shape}")
        sound = (numbers >= least) & (numbers < 2.0**63) & ((numbers == np.rint(numbers)) | (name in _REALS))
        if not sound.all():
            kind = "finite" if name in _REALS else "whole"
            told = "above 0" if name == "weights" else f"of at least {least}"
            raise ValueError(f"{name} must hold {kind} numbers {told}, it holds {numbers[~sound][0]}")


def _events_of(columns: Columns) -> Iterator[Event]:
    kinds = {**dict.fromkeys(_REALS, float), "regroups": bool}
    typed = {name: columns[name].astype(kinds.get(name, np.int64)) for name in (*SINGLE, *_LISTS)}
    single: dict[str, list[Any]] = {name: typed[name].tolist() for name in SINGLE}
    many = {name: np.split(typed[name], columns[f"{name}_offsets"][1:-1]) for name in _LISTS}
    finds, begun = columns["finds_cluster"].tolist(), columns["drawn_as"].tolist()
    merges = [merge.read() for merge in _MERGES.validate_json(columns["mixes"].tobytes())]
    for i, merge in enumerate(columns["merge"].tolist()):
        answered = many["answered"][i]
        given: dict[str, Any] = {name: many[name][i] for name in _ARRAYS}
        given |= {name: tuple(many[name][i].tolist()) for name in _TUPLES} | {n: each[i] for n, each in single.items()}
        yield Event(
            index=i,
            **given,
            clusters=None if finds[i] else many["clusters"][i],
            server=merges[merge][0],
            starts=merges[merge][1],
            answered=answered.astype(bool).reshape(single["intra_rounds"][i], -1) if len(answered) else None,
            drawn_as=None if begun[i][0] < 0 else (begun[i][0], begun[i][1]),
        )
