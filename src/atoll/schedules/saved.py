"""A schedule's table as a file."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from atoll.files import write_atomically
from atoll.schedules.base import Event, Schedule


def write_schedule(path: Path, schedule: Schedule) -> None:
    """Write the schedule's table as ``.npz``: one entry an event, lists flattened with their offsets.

    Merges that events share are written once, in the JSON array `mixes`; `merge` is each event's position in it.
    """
    events = schedule.events
    columns: dict[str, Any] = {
        "round": [e.round for e in events],
        "seconds": [e.seconds for e in events],
        "intra_rounds": [e.intra_rounds for e in events],
        "models_down": [e.models_down for e in events],
        "models_up": [e.models_up for e in events],
        "absent": [e.absent for e in events],
        "dropped": [e.dropped for e in events],
        "late": [e.late for e in events],
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
    merges, columns["merge"] = distinct_merges(schedule)
    mixes = [{"server": _mix(e.server), "starts": [[c, _mix(m)] for c, m in e.starts]} for e in merges]
    columns["mixes"] = np.frombuffer(json.dumps(mixes).encode(), np.uint8)
    content = BytesIO()
    np.savez_compressed(content, **columns)
    write_atomically(path, content.getvalue())


def distinct_merges(schedule: Schedule) -> tuple[list[Event], list[int]]:
    """Return the first event of each distinct merge, and each event's position among them.

    Schedules give events that merge alike the same objects, so comparing these does not read them.
    """
    firsts: list[Event] = []
    positions: dict[tuple[int, int], int] = {}
    merge = []
    for event in schedule.events:
        key = id(event.server), id(event.starts)
        if key not in positions:
            positions[key] = len(firsts)
            firsts.append(event)
        merge.append(positions[key])
    return firsts, merge


def _mix(mix: Any) -> Any:
    return None if mix is None else {"server": mix.server, "published": [list(pair) for pair in mix.published]}
