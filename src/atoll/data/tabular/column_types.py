"""What columns of Arrow hold, by their types, and their values as numbers."""

from typing import TYPE_CHECKING

import numpy as np

from atoll.support.arrays import Floats, Mask

if TYPE_CHECKING:
    import pyarrow as pa


def is_text(kind: "pa.DataType") -> bool:
    """Return whether values of a type are texts."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_numeric(kind: "pa.DataType") -> bool:
    """Return whether values of a type are numbers or booleans."""
    import pyarrow as pa

    checks = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal
    return any(check(kind) for check in checks)


def is_discrete(kind: "pa.DataType") -> bool:
    """Return whether values of a type, other than texts, can be categories."""
    import pyarrow as pa

    return any(check(kind) for check in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_temporal))


def kind_of_values(column: "pa.Field | pa.Array") -> "pa.DataType":
    """Return the type of a column's values, of which a dictionary holds each once."""
    import pyarrow as pa

    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def whole_column(table: "pa.Table", name: str) -> "pa.Array":
    """Return a table's column as one array."""
    import pyarrow as pa

    column = table.column(name).combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def plain(column: "pa.Array") -> "pa.Array":
    """Return a column without a dictionary."""
    import pyarrow as pa

    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def numbers(column: "pa.Array") -> Floats:
    """Return a column of numbers as float64, NaN where they are missing."""
    import pyarrow as pa

    return np.asarray(plain(column).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def is_missing(column: "pa.Array") -> Mask:
    """Return where a column has no value, or NaN."""
    import pyarrow.compute as pc

    return np.asarray(pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False))
