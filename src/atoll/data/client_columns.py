"""The clients' attributes: a CSV file with one row per client."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.support.arrays import Mask
from atoll.support.errors import InputError, refusing
from atoll.support.untrusted import read_bytes

MOST_SLOTS = 10_080  # the minutes of a week
_COLUMNS = ("client", "utc_offset", "longitude", "slots")


def read_clients(path: str | Path, clients: int) -> dict[str, npt.NDArray[Any]]:
    """Read the clients' attributes from a CSV file with one row per client.

    Columns, all optional: ``utc_offset`` (hours), ``longitude`` (degrees), ``slots`` (numbers counted from 0, separated
    by spaces or semicolons; may be empty) and ``client`` (a number), which gives the order.
    """
    setting = f"data.clients_file = {str(path)!r}"
    with refusing(f"{setting}: cannot be read", UnicodeDecodeError, csv.Error):
        text = read_bytes(Path(path)).decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    if len(rows) != clients:
        raise InputError(f"{setting}: has {len(rows)} rows, but data.clients = {clients}")
    if unknown := sorted(str(name) for name in rows[0] if name not in _COLUMNS):
        raise InputError(f"{setting}: unknown column {unknown[0]!r}; allowed are {', '.join(_COLUMNS)}")
    try:
        rows.sort(key=lambda row: int(row.get("client") or 0))
        columns: dict[str, npt.NDArray[Any]] = {
            name: np.array([float(row[name]) for row in rows])
            for name in ("utc_offset", "longitude")
            if name in rows[0]
        }
        if not all(np.isfinite(column).all() for column in columns.values()):
            raise ValueError("its numbers must be finite")
        if "client" in rows[0] and [int(row["client"]) for row in rows] != list(range(clients)):
            raise ValueError(f"client: must be each number from 0 to {clients - 1} once")
        if "slots" in rows[0]:
            columns["slots"] = slot_table([[int(s) for s in row["slots"].replace(";", " ").split()] for row in rows])
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{setting}: {error}") from error
    return columns


def slot_table(slots: Sequence[Sequence[int]]) -> Mask:
    """Return in which slots each client can train, bool [clients, slots].

    >>> slot_table([[0, 2], []])
    array([[ True, False,  True],
           [False, False, False]])
    """
    last = max((max(row, default=-1) for row in slots), default=-1)
    if last >= MOST_SLOTS:
        raise ValueError(f"it names the slot {last}; a day may have at most {MOST_SLOTS}")
    table = np.zeros((len(slots), last + 1), bool)
    for client, row in enumerate(slots):
        if row and min(row) < 0:
            raise ValueError(f"client {client} has the slot {min(row)}; slots count from 0")
        table[client, list(row)] = True
    return table
