"""Arrays from users: lists, tensors, columns of data frames; read without importing their libraries."""

from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.support.arrays import Ids
from atoll.support.errors import InputError

Array = npt.NDArray[Any]

_CHUNK = 1 << 22  # numbers checked at a time, which bounds scratch memory
_AS_TORCH_HAS = {"b": np.uint8, "f": np.float32, "u": np.int64}  # replacements for types that PyTorch lacks, by kind


def as_array(name: str, value: Any) -> Array:
    """Return numbers as an array of a type that PyTorch has; arrays that have one already are not copied.

    Takes NumPy arrays, lists, tensors, and Series and frames of pandas and similar libraries.
    """
    if np.ma.is_masked(value):
        raise InputError(f"{name}: must hold numbers; {np.sum(value.mask):,} of {value.size:,} are masked")
    array = value if isinstance(value, np.ndarray) else _read(name, value)
    if array.dtype == object:  # such as a frame's columns of several types
        with suppress(TypeError, ValueError):
            array = np.array(array.tolist())
    if array.dtype.kind not in "biuf":
        is_text = array.dtype.kind in "US" or (array.dtype == object and any(isinstance(x, str) for x in array.flat))
        texts = "texts; np.unique(texts, return_inverse=True)[1] turns them into numbers"
        raise InputError(f"{name}: must hold numbers, not {texts if is_text else kind_of(value)}")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{name}: must hold numbers below 2**63, one is {array.max()}")
    array = np.asarray(array, _stored_type(array.dtype), order="C")
    if not is_finite(array):
        bad = np.count_nonzero(~np.isfinite(array))
        raise InputError(f"{name}: must hold finite numbers; {bad:,} of {array.size:,} are NaN or infinite")
    return array


def as_whole(name: str, value: Any) -> Ids:
    """Return a flat array of whole numbers, of any type, as int64."""
    array = as_array(name, value)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array  # a frame of one column
    if array.ndim != 1:
        hint = "; for one-hot rows give .argmax(axis=1)" if array.ndim == 2 else ""
        raise InputError(f"{name}: must be flat, one whole number each, not {kind_of(array)}{hint}")
    whole = array.astype(np.int64, copy=False)
    if array.dtype.kind == "f" and not np.array_equal(whole, array):
        raise InputError(f"{name}: must be whole numbers, one is {array[whole != array][0]:g}")
    return whole


def is_finite(array: Array) -> bool:
    """Return whether all numbers are finite, without a mask as large as the array."""
    flat = array.reshape(-1)
    return array.dtype.kind != "f" or all(
        bool(np.isfinite(flat[low : low + _CHUNK]).all()) for low in range(0, flat.size, _CHUNK)
    )


def kind_of(value: Any) -> str:
    """Return in words what a value is."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {list(value.shape)}"
    return "nothing" if value is None else f"{type(value).__name__!r}"


def _read(name: str, value: Any) -> Array:
    try:
        if hasattr(value, "detach"):  # a tensor
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
            return np.asarray(value.numpy())
        return np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    except Exception as error:  # rows of different lengths, or anything that a foreign container raises
        raise InputError(f"{name}: cannot be read as one array of numbers, with rows of one length") from error


def _stored_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    known = ("uint8", "int8", "int16", "int32", "int64", "float32", "float64")
    own = np.dtype(np.float64 if dtype.kind == "f" and dtype.itemsize > 8 else dtype).newbyteorder("=")
    return own if own.name in known else np.dtype(_AS_TORCH_HAS[own.kind])
