"""Tables of numbers by column: CSV files with a header, and Parquet files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.cells import read_cells
from atoll.support.errors import InputError, refusing
from atoll.support.parquet import read_parquet

POSITIONS = ("x", "y")


def read_columns(path: str | Path, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Floats]:
    """Read columns of finite numbers from a CSV file with a header, or a Parquet file."""
    reader = {".csv": _read_csv, ".parquet": _read_parquet}.get(Path(path).suffix.lower())
    if reader is None:
        raise InputError(f"{path}: must be a .csv or a .parquet file")
    names, table = reader(Path(path))
    if missing := [name for name in required if name not in names]:
        has = f"has no column {missing[0]!r}; its columns are {', '.join(names)}" if names else "is empty"
        raise InputError(f"{path}: {has}")
    if unknown := [name for name in names if name not in {*required, *optional}]:
        allowed = dict.fromkeys([*required, *optional])
        raise InputError(f"{path}: unknown column {unknown[0]!r}; allowed are {', '.join(allowed)}")
    if twice := [name for name in names if names.count(name) > 1]:  # possible in a Parquet file
        raise InputError(f"{path}: has the column {twice[0]!r} twice")
    if not len(table[0]):
        raise InputError(f"{path}: has no rows")
    for name, values in zip(names, table, strict=True):
        check_column(path, name, values, np.isfinite(values), "must be a finite number")
    return dict(zip(names, table, strict=True))


def whole_numbers(path: str | Path, name: str, values: Floats, least: int) -> Ids:
    """Return a column as whole numbers of at least `least`; an error names the row."""
    good = (values >= least) & (values == np.floor(values)) & (values < 2**53)
    check_column(path, name, values, good, f"must be a whole number of at least {least}")
    return values.astype(np.int64)


def check_column(path: str | Path, name: str, values: Floats, good: Mask, rule: str) -> None:
    """Refuse a column unless all its values are `good`; `rule` says what they must be."""
    if not good.all():
        row = int(np.argmin(good))
        raise InputError(f"{path}: column {name!r}, row {row + 1} is {values[row]:g}; it {rule}")


def _read_csv(path: Path) -> tuple[list[str], list[Floats]]:
    names, rows = read_cells(path)
    table = np.empty((len(names), len(rows)))
    for place, name in enumerate(names):
        for row, cells in enumerate(rows):
            try:
                table[place, row] = float(cells[place])
            except ValueError as error:
                told = f"{path}: column {name!r}, row {row + 1} is {cells[place]!r}"
                raise InputError(f"{told}; it must be a number") from error
    return names, list(table)


def _read_parquet(path: Path) -> tuple[list[str], list[Floats]]:
    import pyarrow

    with refusing(f"{path}: cannot be read", ValueError, pyarrow.ArrowException):
        table = read_parquet(path)
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not (pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type)):
            raise InputError(f"{path}: column {name!r} has the type {column.type}; it must hold numbers")
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy())) + 1
            raise InputError(f"{path}: column {name!r}, row {row} is empty; it must be a number")
        columns.append(column.to_numpy().astype(np.float64))
    return list(table.column_names), columns
