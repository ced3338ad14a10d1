"""Reading samples from one file: Parquet, .npz, or a pair of .npy files."""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.support.errors import InputError, refusing
from atoll.support.numpy_files import names_in_npz, read_npy, read_npz, require_no_bomb
from atoll.support.parquet import column_names, read_parquet

Array = npt.NDArray[Any]
Table = Mapping[str, Callable[[], Array]]
"""Columns by name, each a function that reads it."""

INPUT_NAMES = ("inputs", "input", "x", "image", "img", "features")
PICTURES = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")  # for some other formats Pillow runs other programs
MOST_PIXELS = 2**24
TARGET_NAMES = ("targets", "target", "y", "label", "labels")


def open_table(path: Path) -> Table:
    """Return the columns of a .parquet or .npz file."""
    if path.suffix == ".parquet":
        return _open_parquet(path)
    with refusing(f"{path}: cannot be read", ValueError):
        names = names_in_npz(path)
    return {name: partial(_load, path, name) for name in names}


def open_arrays(files: Sequence[Path], prefixes: Sequence[str]) -> Table:
    """Return .npy files as columns named after them, without prefixes such as ``train_``."""
    bare = {file: next((mark for mark in prefixes if file.stem.startswith(mark)), "") for file in files}
    return {file.stem.removeprefix(mark): partial(_load, file) for file, mark in bare.items()}


def read_samples(
    table: Table, source: str, inputs: str | list[str] | None, targets: str | None
) -> tuple[Array, Array, bool]:
    """Return the inputs and targets of a table, and whether the inputs are images with their channels last.

    Args:
        source: the file, for errors.
        inputs: the column of inputs; several columns of numbers become one vector per sample. None: the first of
            `INPUT_NAMES` that exists.
        targets: the column of targets. None: the first of `TARGET_NAMES` that exists.
    """
    if isinstance(inputs, list):
        columns = [_column(table, source, name, (), "inputs") for name in inputs]
        if not columns or any(column.ndim != 1 or len(column) != len(columns[0]) for column in columns):
            raise InputError(f"{source}: data.inputs: the columns must each hold one number per sample")
        values, is_last = np.stack(columns, axis=1), False
    else:
        values = _column(table, source, inputs, INPUT_NAMES, "inputs")
        is_last = values.dtype == object
        values = _decode(values, source) if is_last else values
    return values, _column(table, source, targets, TARGET_NAMES, "targets"), is_last and values.ndim == 4


def _column(table: Table, source: str, name: str | None, known: Sequence[str], what: str) -> Array:
    chosen = name or next((each for each in known if each in table), None)
    if chosen is None or chosen not in table:
        missing = f"no column {name!r}" if name else f"no column called {', '.join(known)}"
        there = ", ".join(table) or "none"
        raise InputError(f"{source}: has {missing}; set data.{what} to the column of {what}, one of: {there}")
    return table[chosen]()


def _load(path: Path, name: str | None = None) -> Array:
    with refusing(f"{path}: cannot be read", ValueError):
        return read_npy(path) if name is None else read_npz(path, [name])[name]


def _open_parquet(path: Path) -> Table:
    import pyarrow

    told, kinds = f"{path}: cannot be read", (ValueError, pyarrow.ArrowException)
    with refusing(told, *kinds):
        names = column_names(path)

    def read(name: str) -> Array:
        with refusing(told, *kinds):
            column = read_parquet(path, [name]).column(name)
        return _dense(column.combine_chunks(), f"{path}: column {name!r}")

    return {name: partial(read, name) for name in names}


def read_column(column: Any, where: str) -> Array:
    """Return an Arrow array of numbers, arrays or images as [rows, ...]; images as bytes, with their channels first."""
    values = _dense(column, where)
    if values.dtype == object:
        values = _decode(values, where)
        return np.moveaxis(values, 3, 1) if values.ndim == 4 else values[:, None]
    if values.dtype.kind not in "biuf":
        raise InputError(f"{where} holds values of type {values.dtype}; they must be numbers")
    if values.dtype == np.uint8:
        return values[:, None] if values.ndim == 3 else values
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise InputError(f"{where} holds numbers that are missing, infinite, or too large for 32 bits")
    return values


def _dense(column: Any, where: str) -> Array:
    """Return an Arrow array as [rows, ...]: nested lists become axes, encoded images an array of bytes objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    shape = [len(array)]
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    if pa.types.is_struct(array.type) and "bytes" in array.type.names:  # as Hugging Face stores images
        array = array.field("bytes")
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            raise InputError(f"{where} has empty cells")
        lengths = np.unique(pc.list_value_length(array).to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise InputError(f"{where} holds lists of {lengths[0]} to {lengths[-1]} entries; all must have one length")
        shape.append(int(lengths[0]) if len(lengths) else 0)
        array = array.flatten()
    if array.null_count:
        raise InputError(f"{where} has empty cells")
    return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)


def _decode(images: Array, source: str) -> Array:
    """Decode images, such as PNG files, into [n, height, width] or [n, height, width, 3]."""
    decoded: list[Array] = []
    packed = sum(len(content) for content in images if isinstance(content, bytes))
    for row, content in enumerate(images):
        if not isinstance(content, bytes):
            raise InputError(f"{source}: its inputs must be numbers, lists of numbers or images, not {content!r:.40}")
        with refusing(f"{source}: row {row} cannot be read as an image", Exception):  # Pillow may raise anything
            decoded.append(decode_picture(content))
            require_no_bomb(len(decoded) * decoded[0].nbytes, packed)
        if decoded[row].shape != decoded[0].shape:
            shapes = f"{list(decoded[0].shape)} and {list(decoded[row].shape)}"
            raise InputError(f"{source}: its images have different shapes ({shapes}); all must have one size")
    return np.stack(decoded) if decoded else np.empty(0, np.uint8)


def decode_picture(content: bytes, side: int | None = None) -> Array:
    """Return one image as [height, width] or [height, width, 3]; its size is checked before it is unpacked.

    With `side`, it is resized to a square with this many pixels a side.
    """
    from PIL import Image

    with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):  # the limit here is lower
        opened = Image.open(io.BytesIO(content), formats=PICTURES)
    with opened as image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels are more than {MOST_PIXELS}")
        if image.mode == "F" or image.mode.startswith("I"):
            raise ValueError(f"its pixels have more than 8 bits (mode {image.mode}); convert it to 8")
        plain = image.convert("L" if image.mode in ("L", "1", "LA") else "RGB")
        return np.asarray(plain if side is None else plain.resize((side, side)))
