"""Where a table's rows come from: CSV, Parquet or Arrow files, or a table in memory; read batch by batch."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atoll.data.array_inputs import kind_of
from atoll.data.files.folders import listed, require_root
from atoll.data.tabular.arrow import BATCH, Reads, open_arrow, open_parquet
from atoll.data.tabular.csv import CsvFiles
from atoll.support.errors import InputError
from atoll.support.wording import nearest

if TYPE_CHECKING:
    import pyarrow as pa

Split = Literal["train", "test", "other"]

CSV, ARROW, PARQUET = (".csv", ".tsv"), (".arrow", ".feather", ".ipc"), ".parquet"
ENDINGS = (*CSV, *ARROW, PARQUET)
MOST_COLUMNS = 10_000
FILE = "file"
SPLITS: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "other"),
}


@dataclass(frozen=True)
class Piece:
    """Some of a table's rows.

    Attributes:
        name: where they come from, for errors.
        read: yields them in batches with the columns it is given.
        split: what they are for, by the file's name; None: it does not say.
    """

    name: str
    read: Reads
    split: Split | None = None


@dataclass(frozen=True)
class TableSource:
    """A table.

    Attributes:
        schema: its columns and their types.
        added: columns that the files do not have: "file", the name of a row's file without its suffix.
    """

    name: str
    schema: "pa.Schema"
    pieces: tuple[Piece, ...]
    added: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a table whose columns share a name, or have types that Atoll does not read."""
        names = self.schema.names
        if doubled := sorted({name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()):
            raise InputError(f"{self.name}: has several columns {doubled[0]!r}; column names must be unique")
        if not 0 < len(names) <= MOST_COLUMNS:
            raise InputError(f"{self.name}: has {len(names)} columns; there must be from 1 to {MOST_COLUMNS}")
        for each in self.schema:
            if (each.metadata or {}).get(b"ARROW:extension:name") == b"arrow.py_extension_type":
                raise InputError(f"{self.name}: column {each.name!r} has a pickled type, which is never read")

    def batches(self, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        """Yield all rows in batches, with these columns in this order."""
        for piece in self.pieces:
            yield from piece.read(columns)

    def table(self, columns: Sequence[str]) -> "pa.Table":
        """Return all rows of these columns."""
        import pyarrow as pa

        schema = pa.schema(list(map(self.schema.field, columns)))
        return pa.Table.from_batches(self.batches(columns), schema).unify_dictionaries()

    def require(self, setting: str, name: str, others: Collection[str] = ()) -> str:
        """Return the column's name; `others` are named beside it, and so are not what is meant."""
        if name in self.schema.names:
            return name
        meant = nearest(name, [each for each in self.schema.names if each not in others])
        hint = f", did you mean {meant!r}?" if meant else ";"
        there = ", ".join(self.schema.names[:20]) + (" ..." if len(self.schema.names) > 20 else "")
        raise InputError(f"{setting} = {name!r}: {self.name} has no such column{hint} it has {there}")


def open_source(root: str | None, keep: Collection[str] = ()) -> TableSource:
    """Return the table of a file, or of all files in a folder (and in its folders train and test).

    CSV is read whole to find its types; the columns to `keep`, which are needed again in any case, stay in memory.
    """
    base = require_root(root, "table", "the table's file, or a folder of files")
    files = table_files(base)
    if not files:
        state = "holds no table" if base.is_dir() else "does not exist" if not base.exists() else "is not a table"
        told = f"give a file, or a folder of files, with the suffix {', '.join(ENDINGS)}"
        raise InputError(f"data.root = '{base}' {state}: {told}")
    splits = _splits_of(files, base)
    texts = CsvFiles([file for file in files if file.suffix in CSV], keep)
    readers = {**dict.fromkeys(CSV, texts.open), **dict.fromkeys(ARROW, open_arrow), PARQUET: open_parquet}
    opened = {file: readers[file.suffix](file) for file in files}
    schema = opened[files[0]][0]
    for file, (own, _) in opened.items():
        if own.names != schema.names or own.types != schema.types:
            raise InputError(f"{file}: its columns, or their types, differ from those of {files[0]}")
    pieces = tuple(Piece(str(file), read, splits.get(file)) for file, (_, read) in opened.items())
    source = TableSource(base.resolve().stem, schema, pieces)
    return _with_files(source) if base.is_dir() and FILE not in schema.names else source


def _with_files(source: TableSource) -> TableSource:
    """Return the table with a column of files' names."""
    import pyarrow as pa

    schema = source.schema.append(pa.field(FILE, pa.string()))
    pieces = (replace(piece, read=_with_file(piece.read, Path(piece.name).stem)) for piece in source.pieces)
    return replace(source, schema=schema, pieces=tuple(pieces), added=(FILE,))


def _with_file(read: Reads, stem: str) -> Reads:
    """Return a reader that also gives the column of files' names, if asked for it."""

    def read_named(columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        own = [name for name in columns if name != FILE]
        for batch in read(own):
            names = pa.array([stem] * batch.num_rows, pa.string())
            arrays = [names if name == FILE else batch.column(name) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, list(columns))

    return read_named


def table_files(base: Path) -> list[Path]:
    """Return a table's files, those in the folder `train` before those in `test`."""
    if base.is_file():
        return [base] if base.suffix in ENDINGS else []
    if not base.is_dir():
        return []
    entries = listed(base)
    inner = [entry for name in SPLITS for entry in entries if entry.is_dir() and entry.name == name]
    return [file for folder in (base, *inner) for file in listed(folder) if file.is_file() and file.suffix in ENDINGS]


def _splits_of(files: Sequence[Path], base: Path) -> dict[Path, Split]:
    """Return what files are for, if names in a folder, or of its folders, say so; all others are for training."""
    told = {file: SPLITS.get(file.parent.name) if file.parent != base else _told(file.stem) for file in files}
    has_splits = base.is_dir() and any(told.values())
    return {file: split or "train" for file, split in told.items()} if has_splits else {}


def _told(stem: str) -> Split | None:
    """Return the split in a name such as ``cifar-train-00000-of-00002``."""
    words = stem.lower().replace("_", "-").replace(".", "-").split("-")
    return next((SPLITS[word] for word in words if word in SPLITS), None)


def make_source(name: str, frame: Any, test: Any) -> TableSource:
    """Return a table in memory, with or without a second one of test rows."""
    tables = [_as_table(name, frame), *([] if test is None else [_as_table(f"{name}'s test", test)])]
    schema = tables[0].schema
    if tables[-1].schema.names != schema.names or tables[-1].schema.types != schema.types:
        raise InputError(f"{name}: the columns of test, or their types, differ from those of frame")
    splits: tuple[Split | None, ...] = (None,) if test is None else ("train", "test")
    reads = [partial(_batches_of, table) for table in tables]
    return TableSource(name, schema, tuple(map(Piece, (name, f"{name}'s test"), reads, splits)))


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


def _batches_of(table: "pa.Table", columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
    return iter(table.select(list(columns)).to_batches(BATCH))
