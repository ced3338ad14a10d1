"""The clients' attributes: a CSV file with one row per client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.support.arrays import Mask
from atoll.support.cells import read_cells
from atoll.support.errors import InputError

MOST_SLOTS = 10_080  # the minutes of a week
_COLUMNS = ("client", "utc_offset", "longitude", "slots")


def read_clients(path: str | Path, clients: int) -> dict[str, npt.NDArray[Any]]:
    """Read the clients' attributes from a CSV file with one row per client.

    Columns, all optional: ``utc_offset`` (hours), ``longitude`` (degrees), ``slots`` (numbers counted from 0, separated
    by spaces or semicolons; may be empty) and ``client`` (a number), which gives the order.
    """
    names, rows = read_cells(Path(path))
    if len(rows) != clients:
        raise InputError(f"{path}: has {len(rows)} rows, but data.clients = {clients}")
    if unknown := [name for name in names if name not in _COLUMNS]:
        raise InputError(f"{path}: unknown column {unknown[0]!r}; allowed are {', '.join(_COLUMNS)}")
    cells = dict(zip(names, zip(*rows, strict=True), strict=True))
    try:
        numbers = [int(cell) for cell in cells.get("client", range(clients))]
        if sorted(numbers) != list(range(clients)):
            raise ValueError(f"client: must be each number from 0 to {clients - 1} once")
        order = np.argsort(numbers)
        columns: dict[str, npt.NDArray[Any]] = {
            name: np.array([float(cell) for cell in cells[name]])[order]
            for name in ("utc_offset", "longitude")
            if name in cells
        }
        if not all(np.isfinite(column).all() for column in columns.values()):
            raise ValueError("its numbers must be finite")
        if "slots" in cells:
            slots = [[int(s) for s in cell.replace(";", " ").split()] for cell in cells["slots"]]
            columns["slots"] = slot_table([slots[client] for client in order])
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    return columns


def slot_table(slots: Sequence[Sequence[int]]) -> Mask:
    """Return in which slots each client can train, bool [clients, slots]."""
    last = max((max(row, default=-1) for row in slots), default=-1)
    if last >= MOST_SLOTS:
        raise ValueError(f"it names the slot {last}; a day may have at most {MOST_SLOTS}")
    table = np.zeros((len(slots), last + 1), bool)
    for client, row in enumerate(slots):
        if row and min(row) < 0:
            raise ValueError(f"client {client} has the slot {min(row)}; slots count from 0")
        table[client, list(row)] = True
    return table
