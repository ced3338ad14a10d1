"""Rows with named fields from CSV, TOML or JSON: clients, devices and links.

Errors in a file are InputErrors that name the file, the row and the column.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.support.cells import read_cells
from atoll.support.errors import InputError, refusing
from atoll.support.files import csv_text, write_atomically
from atoll.support.untrusted import parse_json, parse_toml, read_bytes
from atoll.support.wording import show


@dataclass(frozen=True, eq=False)
class Record:
    """One row of a file.

    Attributes:
        where: the file and the row, counted from 1, for errors.
        fields: its values by name, without empty cells.
    """

    where: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """Return a field that must be a name."""
        value = self.fields.get(name)
        if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
            raise InputError(f"{self.where}: {name!r} is {show(value)}; it must be a name")
        return str(value).strip()

    def number(self, name: str, least: float = 0.0, above: bool = False) -> float | None:
        """Return a field that must be a number of at least `least`, or `above` it; None if the row lacks it."""
        value = self.fields.get(name)
        if value is None:
            return None
        try:
            found = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            found = math.nan
        if not (least < found if above else least <= found) or not math.isfinite(found):
            rule = "greater than" if above else "of at least"
            raise InputError(f"{self.where}: {name!r} is {show(value)}; it must be a finite number {rule} {least:g}")
        return found


def read_document(path: Path) -> dict[str, Any]:
    """Return the table in a TOML or JSON file."""
    parse = {".toml": parse_toml, ".json": parse_json}.get(path.suffix.lower())
    if parse is None:
        raise InputError(f"{path}: must be a .csv, .toml or .json file")
    with refusing(f"{path}: cannot be read", ValueError):
        found = parse(read_bytes(path))
    if not isinstance(found, dict):
        raise InputError(f"{path}: must be a table with 'links', it is {type(found).__name__!r}")
    return found


def read_records(path: Path) -> list[Record]:
    """Return the rows of a CSV file with a header."""
    names, rows = read_cells(path)
    if not rows:
        raise InputError(f"{path}: has no rows")
    return [
        Record(f"{path}: row {number}", {k: v.strip() for k, v in zip(names, row, strict=True) if v.strip()})
        for number, row in enumerate(rows, 1)
    ]


def tables(path: Path, name: str, given: Any) -> list[Record]:
    """Return the rows under a document's key, or of the CSV file named there."""
    if isinstance(given, str):
        return read_records(path.parent / given)
    if not isinstance(given, list) or not given or not all(isinstance(row, dict) for row in given):
        raise InputError(f"{path}: {name!r} must be tables, or the name of a CSV file")
    return [Record(f"{path}: {name} {number}", row) for number, row in enumerate(given, 1)]


def require_fields(records: list[Record], allowed: tuple[str, ...]) -> None:
    """Refuse unknown fields, such as misspelt ones."""
    for record in records:
        if unknown := [name for name in record.fields if name not in allowed]:
            raise InputError(f"{record.where}: unknown column {unknown[0]!r}; allowed are {', '.join(allowed)}")


def write_direct(path: Path, upload_seconds: Mapping[str, float], aggregators: int) -> None:
    """Write links from each client to each aggregator, and from these to the server, which take no time."""
    names = [f"aggregator-{j}" for j in range(aggregators)]
    uploads = ((client, name, seconds) for client, seconds in upload_seconds.items() for name in names)
    rows = [("from", "to", "up_seconds"), *uploads, *((name, "server", 0.0) for name in names)]
    write_atomically(path, csv_text(rows).encode())
