"""Reading untrusted Parquet files with pyarrow, which takes long to import.

A file that cannot be opened raises OSError, one that is not Parquet pyarrow.ArrowException.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.support.numpy_files import require_no_bomb
from atoll.support.untrusted import open_regular

if TYPE_CHECKING:
    from pyarrow import Table
    from pyarrow.parquet import ParquetFile

_VALUE_BYTES = 8


def column_names(path: Path) -> list[str]:
    """Return the names of a file's columns."""
    import pyarrow.parquet

    with open_regular(path) as file:
        return list(pyarrow.parquet.read_schema(file).names)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> "Table":
    """Return all columns of a file, or those named.

    Raises:
        ValueError: if it unpacks to far more than its size.
    """
    with opened_parquet(path) as parquet:
        return parquet.read(None if columns is None else list(columns))


@contextmanager
def opened_parquet(path: Path) -> "Iterator[ParquetFile]":
    """Open a file to read it in parts; raises what `read_parquet` raises."""
    import pyarrow.parquet

    with open_regular(path) as file:
        parquet = pyarrow.parquet.ParquetFile(file)
        # The columns' own metadata would be more exact, but pyarrow aborts the process where it is damaged.
        groups = [parquet.metadata.row_group(i) for i in range(parquet.num_row_groups)]
        values = parquet.metadata.num_rows * parquet.metadata.num_columns
        unpacked = max(sum(group.total_byte_size for group in groups), _VALUE_BYTES * values)
        require_no_bomb(unpacked, os.fstat(file.fileno()).st_size)
        yield parquet
