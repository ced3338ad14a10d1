"""Reading Parquet and Arrow files from untrusted sources, batch by batch."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.data.tabular.column_types import is_text
from atoll.support.errors import InputError, reason_of
from atoll.support.numpy_files import require_no_bomb
from atoll.support.parquet import opened_parquet
from atoll.support.untrusted import open_regular

if TYPE_CHECKING:
    import pyarrow as pa

Reads = Callable[[Sequence[str]], "Iterator[pa.RecordBatch]"]

BATCH = 1 << 16
_MAGIC = b"ARROW1"
_OF_FILES = (OSError, ValueError, OverflowError, MemoryError, KeyError)


@contextmanager
def as_damage(name: Path | str, others: tuple[type[Exception], ...] = _OF_FILES) -> Iterator[None]:
    """Turn Arrow's errors, and `others` that reading a file may raise, into one sentence: it cannot be read."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, *others) as error:
        told = reason_of(error)[:200] or type(error).__name__
        raise InputError(f"{name}: cannot be read ({told})") from error


def open_parquet(path: Path) -> "tuple[pa.Schema, Reads]":
    """Return a Parquet file's columns, and a function that reads some of them."""
    with as_damage(path), opened_parquet(path) as parquet:
        schema = _named(parquet.schema_arrow)

    def read(columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        with as_damage(path), opened_parquet(path) as parquet:
            for batch in parquet.iter_batches(BATCH, columns=list(columns)):
                yield _checked(batch, columns)

    return schema, read


def open_arrow(path: Path) -> "tuple[pa.Schema, Reads]":
    """Return the columns of an Arrow IPC file, and a function that reads some of them.

    It may lack a footer, as the files of Hugging Face's `save_to_disk` and cache do.
    """
    with as_damage(path), _opened_arrow(path) as reader:
        schema = _named(reader.schema)

    def read(columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        with as_damage(path), _opened_arrow(path) as reader:
            packed = os.stat(path).st_size
            unpacked = 0
            for batch in _batches(reader):
                whole = _checked(batch, columns)
                unpacked += whole.nbytes  # relies on the offsets, hence the check before
                require_no_bomb(unpacked, packed)
                for low in range(0, whole.num_rows, BATCH):
                    yield whole.slice(low, BATCH)

    return schema, read


@contextmanager
def _opened_arrow(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    with open_regular(path) as file:
        has_footer = file.peek(len(_MAGIC))[: len(_MAGIC)] == _MAGIC
        source = pa.PythonFile(file, mode="r")  # not mapped: truncating a mapped file kills the process
        with pa.ipc.open_file(source) if has_footer else pa.ipc.open_stream(source) as reader:
            yield reader


def _named(schema: "pa.Schema") -> "pa.Schema":
    """Return a schema after decoding its names, which would otherwise fail later."""
    schema.names  # noqa: B018
    return schema


def _batches(reader: Any) -> "Iterator[pa.RecordBatch]":
    is_file = hasattr(reader, "num_record_batches")
    yield from (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader


def _checked(batch: "pa.RecordBatch", columns: Sequence[str]) -> "pa.RecordBatch":
    """Return these columns after checking their offsets and texts."""
    chosen = batch.select(list(columns))
    chosen.validate(full=True)
    return chosen


def compact(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Return a batch with its texts encoded by a dictionary, which takes a fraction of the memory."""
    import pyarrow as pa

    if not batch.num_columns:  # made anew, it would have no rows
        return batch
    arrays = [column.dictionary_encode() if is_text(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)
