"""Client availability and speed over time, from a file with rows of client, seconds and the state from then on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atoll.network.network_records import Record, read_records, require_fields
from atoll.schedules.clock import Changes, Pace
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import InputError
from atoll.support.wording import show

COLUMNS = ("up", "compute", "rate")
_STATES = {"up": True, "1": True, "true": True, "down": False, "0": False, "false": False}


@dataclass(frozen=True, eq=False)
class Availability:
    """Clients' changes between up and down, in chronological order.

    Attributes:
        seconds: times of each client's changes, ascending, one array per client.
        is_up: whether the client is up from each time on.
        end: time of the last change; availability is unknown after it.
        pace: how speeds change; None: not in the file.
    """

    path: str
    seconds: Sequence[Floats]
    is_up: Sequence[Mask]
    end: float
    pace: Pace | None = None

    def at(self, clients: Ids, seconds: Floats) -> Mask:
        """Return which clients are up at these times; before its first row a client is in the opposite state."""
        if seconds.size and (last := float(seconds.max())) > self.end:
            raise InputError(
                f"faults.availability_file = {self.path!r}: ends at {self.end:g} s, but an event begins at {last:g} s; "
                f"end the run by then with run.virtual_seconds = {self.end:g}"
            )
        return np.array([self._is_up(c, t) for c, t in zip(clients.tolist(), seconds.tolist(), strict=True)], bool)

    def _is_up(self, client: int, seconds: float) -> bool:
        place = int(np.searchsorted(self.seconds[client], seconds, side="right")) - 1
        return bool(self.is_up[client][place]) if place >= 0 else not self.is_up[client][0]


def read_availability(path: str, names: Sequence[str]) -> Availability:
    """Read a CSV file with the columns ``client``, ``seconds`` and any of ``up``, ``compute`` and ``rate``.

    ``up`` (up or down) says whether the client is available from then on; ``compute`` and ``rate`` multiply its normal
    computation and transfer speeds. Empty cells change nothing. Rows may be in any order.
    """
    records = read_records(Path(path))
    require_fields(records, ("client", "seconds", *COLUMNS))
    place = {name: k for k, name in enumerate(names)}
    rows: list[list[tuple[float, Record]]] = [[] for _ in names]
    for record in records:
        name = record.text("client")
        if name not in place:
            raise InputError(f"{record.where}: unknown client {name!r}")
        seconds = record.number("seconds")
        if seconds is None:
            raise InputError(f"{record.where}: has no 'seconds'")
        if not any(column in record.fields for column in COLUMNS):
            raise InputError(f"{record.where}: says nothing; it must have one of {', '.join(map(repr, COLUMNS))}")
        rows[place[name]].append((seconds, record))
    if empty := [name for name, mine in zip(names, rows, strict=True) if not mine]:
        raise InputError(f"{path}: client {empty[0]!r} has no row")
    ordered = [sorted(mine, key=lambda row: row[0]) for mine in rows]
    up = [[(t, _state(row)) for t, row in mine if "up" in row.fields] or [(0.0, True)] for mine in ordered]
    has_speeds = any("compute" in row.fields or "rate" in row.fields for row in records)
    return Availability(
        path,
        [np.array([seconds for seconds, _ in mine]) for mine in up],
        [np.array([state for _, state in mine]) for mine in up],
        max(mine[-1][0] for mine in ordered),
        Pace(_speeds(ordered, "compute"), _speeds(ordered, "rate")) if has_speeds else None,
    )


def _speeds(rows: Sequence[Sequence[tuple[float, Record]]], column: str) -> Changes:
    """Return each client's changes in a speed column."""
    found = [[(t, speed) for t, row in mine if (speed := row.number(column, above=True)) is not None] for mine in rows]
    return [(np.array([t for t, _ in mine]), np.array([speed for _, speed in mine])) for mine in found]


def _state(record: Record) -> bool:
    value = str(record.fields.get("up", "")).lower()
    if value not in _STATES:
        raise InputError(f"{record.where}: 'up' is {show(record.fields.get('up'))}; it must be up or down")
    return _STATES[value]
