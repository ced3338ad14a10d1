"""Reading untrusted CSV files with a header."""

import csv
import io
from pathlib import Path

from atoll.support.errors import InputError, reason_of
from atoll.support.untrusted import MOST_BYTES_OF_LINES, read_bytes


def read_cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return a CSV file's header and the cells below it, without empty rows, which spreadsheets add."""
    try:
        text = read_bytes(path, most=MOST_BYTES_OF_LINES).decode("utf-8-sig")
        every = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [row for row in every if row == [""] or any(map(str.strip, row))]  # "" is an only column's empty cell
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8; save the file as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({reason_of(error)})") from error
    if rows and len(rows[0]) == 1 and (other := next((sign for sign in ";\t|" if sign in rows[0][0]), "")):
        raise InputError(f"{path}: its columns are separated by {other!r}; use commas")
    names = [name.strip() for name in rows[0]] if rows else []
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{path}: has the column {twice[0]!r} twice")
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(names):
            raise InputError(f"{path}: row {number} has {len(row)} cells, but the header has {len(names)}")
    return names, rows[1:]
