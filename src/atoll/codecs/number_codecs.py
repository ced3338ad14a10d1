"""The built-in codecs' byte formats. Tensors are in the update's order; numbers are little-endian."""

import math
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atoll.local.models import Form, Model, Shape
from atoll.support.arrays import Ids

LARGEST_LEVEL = 127


def raw(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor."""
    if not tensor.numel():  # its strides may not allow a view as bytes
        return b""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def read_raw(content: bytes, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Return the tensor with these bytes."""
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def cut(payload: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    """Yield pieces of these sizes."""
    begin = 0
    for size in sizes:
        yield payload[begin : begin + size]
        begin += size
    if begin != len(payload):
        raise ValueError(f"has {len(payload)} bytes, expected {begin}")


def encode_bfloat16(update: Model, rng: np.random.Generator) -> bytes:
    """Round each number to the nearest bfloat16, ties to even."""
    return b"".join(raw(tensor.to(torch.bfloat16)) for tensor in update.values())


def decode_bfloat16(payload: bytes, form: Form) -> Model:
    """Return the update."""
    pieces = cut(payload, (2 * shape.numel() for shape, _ in form.values()))
    return {
        name: read_raw(piece, shape, torch.bfloat16).to(dtype)
        for (name, (shape, dtype)), piece in zip(form.items(), pieces, strict=True)
    }


def encode_int8(update: Model, rng: np.random.Generator, stochastic: bool) -> bytes:
    """Write each tensor's scale, its largest magnitude over 127 as a float32, and its levels.

    A tensor with a number that is not finite gets the scale NaN, so that decoding shows it.
    """
    return b"".join(_quantise(tensor.float().numpy().ravel(), rng, stochastic) for tensor in update.values())


def decode_int8(payload: bytes, form: Form) -> Model:
    """Return the update: each level times its tensor's scale."""
    pieces = cut(payload, (4 + shape.numel() for shape, _ in form.values()))
    return {
        name: torch.from_numpy(_dequantise(piece)).reshape(shape).to(dtype)
        for (name, (shape, dtype)), piece in zip(form.items(), pieces, strict=True)
    }


def encode_topk(update: Model, rng: np.random.Generator, share: float) -> bytes:
    """Write the indices of each tensor's sent numbers, ascending, as uint32, and the numbers."""
    found = []
    for tensor in update.values():
        flat = tensor.reshape(-1)
        places = _largest(flat.float().numpy(), count_of(flat.numel(), share))
        found += [places.astype("<u4").tobytes(), raw(flat[torch.from_numpy(places)])]
    return b"".join(found)


def decode_topk(payload: bytes, form: Form, share: float) -> Model:
    """Return the update, zero except for the numbers that were sent."""
    pieces = cut(payload, (size for each in form.values() for size in _topk_sizes(*each, share)))
    update: Model = {}
    for (name, (shape, dtype)), places, values in zip(form.items(), pieces, pieces, strict=True):
        update[name] = torch.zeros(shape, dtype=dtype)
        update[name].view(-1)[_read_places(places, shape.numel())] = read_raw(values, (-1,), dtype)
    return update


def count_of(numbers: int, share: float) -> int:
    """Return how many of a tensor's numbers are sent."""
    return math.ceil(round(share * numbers, 9))  # 0.07 x 100 is 7.000000000000001


def _quantise(values: npt.NDArray[np.float32], rng: np.random.Generator, stochastic: bool) -> bytes:
    largest = np.abs(values).max(initial=0)
    scale = largest / np.float32(LARGEST_LEVEL) if np.isfinite(largest) else np.float32(np.nan)
    levels = np.divide(values, scale, out=np.zeros_like(values), where=bool(scale > 0))
    rounded = np.floor(levels + rng.random(levels.shape, np.float32)) if stochastic else np.rint(levels)
    # The scale is rounded too, so the largest number may slightly exceed 127 times the scale.
    return struct.pack("<f", scale) + np.clip(rounded, -LARGEST_LEVEL, LARGEST_LEVEL).astype(np.int8).tobytes()


def _dequantise(piece: bytes) -> npt.NDArray[np.float32]:
    levels = np.frombuffer(piece, np.int8, offset=4).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # dishonest input may overflow; checked when combined
        levels *= np.frombuffer(piece, np.dtype("<f4"), 1)
    return levels


def _largest(values: npt.NDArray[np.float32], count: int) -> Ids:
    """Return the indices of the `count` numbers of largest magnitude, ascending; the first on ties."""
    sizes = np.nan_to_num(np.abs(values), nan=np.inf, posinf=np.inf)
    if count >= len(sizes):
        return np.arange(len(sizes))
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    above, equal = np.flatnonzero(sizes > least), np.flatnonzero(sizes == least)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


def _topk_sizes(shape: torch.Size, dtype: torch.dtype, share: float) -> tuple[int, int]:
    count = count_of(shape.numel(), share)
    return 4 * count, dtype.itemsize * count


def _read_places(piece: bytes, numbers: int) -> Tensor:
    places = np.frombuffer(piece, "<u4").astype(np.int64)
    if len(places) and (places[-1] >= numbers or (np.diff(places) <= 0).any()):
        raise ValueError(f"has indices that are not ascending from 0 to {numbers - 1}")
    return torch.from_numpy(places)
