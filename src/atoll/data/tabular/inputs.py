"""A table's inputs as arrays, encoded as fitted to the training rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np
import numpy.typing as npt

from atoll.data.files.sample_files import read_column
from atoll.data.tabular.column_types import is_discrete, is_numeric, is_text, kind_of_values, plain, whole_column
from atoll.data.tabular.encoders import Category, Encoder, Number, Text
from atoll.data.tabular.source import TableSource, make_source
from atoll.data.tabular.table_rows import LEFT_OUT, TEST, TRAIN, Uses
from atoll.data.tabular.table_settings import Wanted
from atoll.support.errors import InputError, SettingWarning
from atoll.support.wording import show

if TYPE_CHECKING:
    import pyarrow as pa

_FEW_ROWS = 20  # of which a column of measurements may well have different ones

Floats32 = npt.NDArray[np.float32]


def make_encoder(column: "pa.Field", wanted: Wanted) -> Encoder:
    """Return a column's encoder: as text or category if named as such, else by type; dictionaries are categories."""
    import pyarrow as pa

    kind = kind_of_values(column)
    if column.name in (wanted.text or ()):
        if not is_text(kind):
            raise InputError(f"data.text: column {column.name!r} holds {kind}; it must hold texts")
        return Text(column.name, wanted.missing, wanted.hashes)
    is_named = column.name in (wanted.categorical or ())
    if is_text(kind) or ((is_named or pa.types.is_dictionary(column.type)) and is_discrete(kind)):
        return Category(column.name, wanted.missing, wanted.categories)
    if is_named:
        raise InputError(
            f"data.categorical: column {column.name!r} holds {kind}; it must hold integers, booleans, dates or texts "
            "(in pandas, .astype('Int64') makes integers that may be missing)"
        )
    if is_numeric(kind) or pa.types.is_null(kind):
        return Number(column.name, wanted.missing)
    raise _no_rule(column.name, kind)


def _no_rule(name: str, kind: "pa.DataType") -> InputError:
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return InputError(
            f"data.inputs: column {name!r} holds {kind}, dates or times; name it as data.time, or in data.categorical "
            "if it holds few dates, or leave it out"
        )
    return InputError(f"data.inputs: column {name!r} holds {kind}, which cannot be encoded; leave it out")


def fit(source: TableSource, encoders: Sequence[Encoder], uses: Uses) -> None:
    """Show the encoders all rows, and which are for training, except the rows that are left out."""
    import pyarrow as pa

    at = 0
    for batch in source.batches([each.name for each in encoders]):
        own = uses[at : at + batch.num_rows]
        at += batch.num_rows
        if (own == LEFT_OUT).any():
            batch, own = batch.filter(pa.array(own != LEFT_OUT)), own[own != LEFT_OUT]
        for encoder, column in zip(encoders, batch.columns, strict=True):
            encoder.see(column, own == TRAIN)


def encode(source: TableSource, encoders: Sequence[Encoder], keep: Sequence[npt.NDArray[np.bool_]]) -> list[Floats32]:
    """Return the encoded rows of each selection in `keep`, [rows, numbers]."""
    widths = np.cumsum([0, *(len(encoder.names) for encoder in encoders)])
    made = [np.empty((int(rows.sum()), widths[-1]), np.float32) for rows in keep]
    filled, at = [0] * len(keep), 0
    for batch in source.batches([each.name for each in encoders]):
        block = np.zeros((batch.num_rows, widths[-1]), np.float32)
        for i, encoder in enumerate(encoders):
            encoder.write(batch.column(i), block[:, widths[i] : widths[i + 1]])
        for k, rows in enumerate(keep):
            own = block[rows[at : at + batch.num_rows]]
            made[k][filled[k] : filled[k] + len(own)] = own
            filled[k] += len(own)
        at += batch.num_rows
    return made


def warn_of_names(source: TableSource, inputs: Sequence[str]) -> None:
    """Warn of inputs with another whole number in every row: names of rows, such as a patient's number."""
    import pyarrow as pa

    whole = [name for name in inputs if pa.types.is_integer(source.schema.field(name).type)]
    table = source.table(whole)
    for name in whole:
        if table.num_rows >= _FEW_ROWS and len(table[name].unique()) == table.num_rows:
            told = f"column {name!r} is an input, but has another value in every row, as names of rows have"
            warn(f"data.inputs: {told}; leave it out with data.id = {name!r}, or name data.inputs", SettingWarning, 2)


def warn_of_exceptions(encoders: Sequence[Encoder], categorical: Sequence[str]) -> None:
    """Warn of numbers that became categories because of a single text, such as '?'."""
    for each in encoders:
        if isinstance(each, Category) and each.exception and each.name not in categorical:
            told = f"column {each.name!r} holds numbers, but also {show(each.exception)}, which makes them"
            hint = "categories; correct it, or name the column in data.categorical"
            warn(f"data.inputs: {told} {len(each.names)} {hint}", SettingWarning, 2)


def is_dense(schema: "pa.Schema", inputs: Sequence[str]) -> bool:
    """Return whether inputs are one column of arrays or images, which are passed through unchanged."""
    import pyarrow as pa

    kind = schema.field(inputs[0]).type
    nested = pa.types.is_list(kind), pa.types.is_large_list(kind), pa.types.is_fixed_size_list(kind)
    return len(inputs) == 1 and (any(nested) or pa.types.is_struct(kind) or isinstance(kind, pa.ExtensionType))


def read_dense(source: TableSource, name: str, keep: Sequence[npt.NDArray[np.bool_]]) -> list[npt.NDArray[Any]]:
    """Return the arrays or images of each selection in `keep`, [rows, ...]; images have their channels first."""
    import pyarrow as pa

    parts: list[list[npt.NDArray[Any]]] = [[] for _ in keep]
    at = 0
    for batch in source.batches([name]):
        chosen = [rows[at : at + batch.num_rows] for rows in keep]
        used = np.any(chosen, axis=0)
        values = read_column(batch.column(0).filter(pa.array(used)), f"{source.name}: column {name!r}")
        for part, rows in zip(parts, chosen, strict=True):
            if len(own := values[rows[used]]):
                part.append(own)
        at += batch.num_rows
    shapes = {part.shape[1:] for each in parts for part in each}
    if len(shapes) > 1:
        raise InputError(f"{source.name}: column {name!r} holds arrays of different shapes; all must be the same")
    return [np.concatenate(part) if part else np.empty(0, np.float32) for part in parts]


@dataclass(frozen=True)
class RowEncoder:
    """Turns new rows into inputs, as its encoders were fitted to the training rows."""

    schema: "pa.Schema"  # in training
    inputs: Sequence[str]
    encoders: Sequence[Encoder]  # one for each input; none for one column of arrays or images
    is_csv: bool  # where empty texts are missing values

    def __call__(self, rows: Any) -> npt.NDArray[Any]:
        """Return the inputs of a data frame's rows, [rows, ...]; its other columns are ignored."""
        import pyarrow as pa
        import pyarrow.compute as pc

        source = make_source("the frame", rows, None)
        table = source.table([source.require("data.inputs", name) for name in self.inputs])
        every = np.ones(table.num_rows, np.bool_)
        if not self.encoders:
            return read_dense(source, self.inputs[0], [every])[0]
        columns = {}
        for encoder in self.encoders:
            kind = pa.float64() if isinstance(encoder, Number) else kind_of_values(self.schema.field(encoder.name))
            column = plain(whole_column(table, encoder.name))
            if self.is_csv and is_text(column.type):
                column = pc.if_else(pc.equal(column, ""), None, column)
            try:
                columns[encoder.name] = column.cast(kind, safe=not isinstance(encoder, Number))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InputError(f"column {encoder.name!r} holds {column.type}, not {kind} as in training") from error
        cast = make_source("the frame", pa.table(columns), None)
        fit(cast, self.encoders, np.full(table.num_rows, TEST, np.int8))  # none is for training, but all are checked
        return encode(cast, self.encoders, [every])[0]
