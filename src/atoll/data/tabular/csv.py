"""Reading CSV files: first types that fit all rows of all files, then batch by batch."""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.data.tabular.arrow import Reads, as_damage, compact
from atoll.support.errors import InputError
from atoll.support.untrusted import open_regular

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK = 1 << 22
_WRONG = re.compile(
    r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to [^:]*: invalid (?:value '(.*)'|UTF8)", re.S
)


class CsvFiles:
    """CSV files of one table. Each column has the narrowest type that fits its values: int64, float64, dates, text.

    Empty fields, and the usual NA, NaN and null, are missing values.
    """

    def __init__(self, files: Sequence[Path], keep: Collection[str] = ()) -> None:
        """Read all files once to find the types; only the columns to `keep` stay in memory."""
        self._types: dict[str, pa.DataType] = {}
        self._keep = frozenset(keep)
        self._kept: dict[Path, list[pa.RecordBatch]] = {}
        self._whole_lines = set[Path]()  # files with one row per line, which are read faster
        waiting = list(files)
        while waiting:  # a type is widened at most twice; each time all files are read again
            waiting = waiting[1:] if self._fit(waiting[0]) else list(files)

    def open(self, path: Path) -> "tuple[pa.Schema, Reads]":
        """Return a file's columns, and a function that reads some of them."""
        import pyarrow as pa

        def read(columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
            if self._keep.issuperset(columns):
                yield from (batch.select(list(columns)) for batch in self._kept[path])
                return
            with as_damage(path), open_regular(path) as file:
                for batch in _reader(path, file, self._types, columns, path not in self._whole_lines):
                    yield batch.select(list(columns))

        return pa.schema([(name, self._types[name]) for name in self._begin(path)]), read

    def _fit(self, path: Path) -> bool:
        """Return whether all values of a file fit the types; widen the first that does not."""
        import pyarrow as pa

        names = self._begin(path)
        kept, wanted = list["pa.RecordBatch"](), [name for name in names if name in self._keep]
        has_breaks = any(mark in name for name in names for mark in "\n\r")
        with as_damage(path), open_regular(path) as file:
            try:
                for batch in _reader(path, file, self._types):
                    has_breaks = has_breaks or any(map(_holds_breaks, batch.columns))
                    kept.append(compact(batch.select(wanted)))
            except pa.ArrowInvalid as error:
                if not (found := _WRONG.search(str(error))):
                    raise
                self._widen(path, names[int(found[1])], found[2])
                return False
        self._kept[path] = kept
        if not has_breaks:
            self._whole_lines.add(path)
        return True

    def _begin(self, path: Path) -> list[str]:
        """Return the columns' names; note the types of new columns, as the first rows suggest them."""
        import pyarrow as pa

        with as_damage(path), open_regular(path) as file:
            schema = _reader(path, file, {}).schema
            for each in schema:
                kind = pa.int64() if pa.types.is_null(each.type) else each.type
                if pa.types.is_binary(self._types.setdefault(each.name, kind)):
                    raise _no_text(path, each.name)
            names: list[str] = schema.names
        if len(names) == 1 and (mark := next((mark for mark in ";\t|" if mark in names[0]), None)):
            raise InputError(f"{path}: has one column {names[0]!r}, separated by {mark!r}; save the file with commas")
        return names

    def _widen(self, path: Path, name: str, value: str | None) -> None:
        import pyarrow as pa

        if value is None:
            raise _no_text(path, name)
        was = self._types[name]
        self._types[name] = pa.float64() if pa.types.is_integer(was) and is_number(value) else pa.string()


def _reader(
    path: Path, file: Any, types: "dict[str, pa.DataType]", columns: Sequence[str] = (), has_breaks: bool = True
) -> Any:
    from pyarrow import csv

    if not (begin := file.peek(2)[:2]):
        raise InputError(f"{path}: is empty; a CSV file begins with a row of column names")
    if begin in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{path}: is UTF-16; save the file as UTF-8")
    return csv.open_csv(
        file,
        read_options=csv.ReadOptions(block_size=_BLOCK),
        parse_options=csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",", newlines_in_values=has_breaks),
        convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=True, include_columns=list(columns)),
    )


def _holds_breaks(column: "pa.Array") -> bool:
    """Return whether a text of a column has more than one line."""
    import pyarrow as pa

    texts = column.buffers()[-1] if pa.types.is_string(column.type) else None
    return texts is not None and any(mark in texts.to_pybytes() for mark in (b"\n", b"\r"))


def _no_text(path: Path, name: str) -> InputError:
    return InputError(f"{path}: column {name!r} is not UTF-8; save the file as UTF-8")


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
