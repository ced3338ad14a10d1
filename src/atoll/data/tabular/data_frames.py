"""Data frames as data sets."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from atoll.data.array_inputs import kind_of
from atoll.data.dataset import Dataset
from atoll.data.tabular.arrow import BATCH
from atoll.data.tabular.make import make_table
from atoll.data.tabular.source import Piece, Split, TableSource
from atoll.data.tabular.table_settings import Wanted
from atoll.support.errors import InputError
from atoll.support.wording import unknown

if TYPE_CHECKING:
    import pyarrow as pa


def from_pandas(
    frame: Any,
    *,
    target: str | list[str] | None = None,
    client: str | list[str] | None = None,
    group: str | None = None,
    test: Any = None,
    name: str = "frame",
    **settings: Any,
) -> Dataset:
    """Return a data frame of pandas (2.2 or later), polars, or any library that exports Arrow, as a data set.

    >>> import pyarrow as pa
    >>> visits = pa.table({"ward": ["a", "b"] * 10, "age": range(20), "ill": ["no", "yes"] * 10})
    >>> from_pandas(visits, client="ward", target="ill")
    Dataset('frame': 16 samples of [1], 4 to test, 2 classes)

    Args:
        frame: one row per sample; its index is not a column.
        target: the column to predict, or several; None with task="causal".
        client: the column that says which client holds a row; or several, taken together.
        group: the column with the client's planted group.
        test: a frame of test rows; None: `split` or `test_every` decides.
        name: the data set's name.
        settings: further ones of ``data.dataset = "table"``, such as ``time="date"`` (see `read_table`).

    Raises:
        InputError: if the frame or the settings do not fit, in one sentence.
    """
    known = {each.name for each in fields(Wanted)}
    if odd := [key for key in settings if key not in known]:
        raise InputError(f"from_pandas: {odd[0]}: {unknown(odd[0], known)}")
    wanted = Wanted(target=target, client=client, group=group, **settings)
    return make_table(make_source(name, frame, test), wanted)


def make_source(name: str, frame: Any, test: Any) -> TableSource:
    """Return a table in memory, with or without a second one of test rows."""
    tables = [_as_table(name, frame), *([] if test is None else [_as_table(f"{name}'s test", test)])]
    schema = tables[0].schema
    if tables[-1].schema.names != schema.names or tables[-1].schema.types != schema.types:
        raise InputError(f"{name}: the columns of test, or their types, differ from those of frame")
    splits: tuple[Split | None, ...] = (None,) if test is None else ("train", "test")
    return TableSource(name, schema, tuple(map(_piece, (name, f"{name}'s test"), tables, splits)))


def _as_table(name: str, frame: Any) -> "pa.Table":
    import pyarrow as pa

    if not (hasattr(frame, "__arrow_c_stream__") or isinstance(frame, pa.Table)):
        raise InputError(f"{name}: must be a data frame, not {kind_of(frame)}")
    try:
        table = pa.table(frame)
    except Exception as error:  # a foreign container may raise anything
        told = " ".join(str(error).split())
        raise InputError(f"{name}: cannot be read as columns of one type each ({told})") from error
    index = [each for each in (table.schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(each, str)]
    return _without_views(table.drop_columns(index) if index else table)


def _without_views(table: "pa.Table") -> "pa.Table":
    """Return the table with texts stored as files store them; polars keeps them as views."""
    import pyarrow as pa

    kinds = [pa.large_string() if pa.types.is_string_view(each.type) else each.type for each in table.schema]
    return table.cast(
        pa.schema([each.with_type(kind) for each, kind in zip(table.schema, kinds, strict=True)], table.schema.metadata)
    )


def _piece(name: str, table: "pa.Table", split: Split | None) -> Piece:
    def read(columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        yield from table.select(list(columns)).to_batches(BATCH)

    return Piece(name, read, split)
