"""Reading untrusted NumPy files: no pickle, and no more memory than the content needs.

As in `support.untrusted`, a file that cannot be opened raises OSError and wrong content ValueError.
"""

import math
import os
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from atoll.support.untrusted import open_regular

Array = npt.NDArray[Any]

MODEST_BYTES = 2**28
MOST_TIMES = 128  # the packed size; MNIST's images unpack to 5 times theirs, a blank picture to 1,000 times
_LONGEST_HEADER = 2**16
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def require_no_bomb(unpacked: int, packed: int) -> None:
    """Refuse content that is large in memory and tiny in its file; both arguments are in bytes.

    Raises:
        ValueError: if it takes more than 256 MiB and more than 128 times its file's size.
    """
    if unpacked > max(MODEST_BYTES, MOST_TIMES * packed):
        raise ValueError(
            f"its {packed:,} bytes unpack to {unpacked:,}, more than {MOST_TIMES} times as many; if this is right, "
            "write it without compression"
        )


def read_npy(path: Path) -> Array:
    """Return the array of a .npy file.

    Raises:
        OSError: if it cannot be opened.
        ValueError: if it holds neither numbers nor texts, or its length does not match its header.
    """
    with open_regular(path) as file, _told_as_damage():
        return _read(file, os.fstat(file.fileno()).st_size)


def names_in_npz(path: Path) -> list[str]:
    """Return the names of the arrays in an .npz file."""
    with _opened(path, None) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_npz(path: Path, names: Iterable[str] | None = None, within: Path | None = None) -> dict[str, Array]:
    """Return all arrays of an .npz file, or those named; each is checked against its checksum.

    Raises:
        OSError: if it cannot be opened, or lies outside the folder `within`.
        KeyError: if it has no array of this name.
        ValueError: if it is damaged, encrypted, unpacks to far more than its size, or holds something else.
    """
    with _opened(path, within) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        wanted = {name: entries[name] for name in (entries if names is None else names)}
        return {name: _read_entry(archive, entry) for name, entry in wanted.items()}


@contextmanager
def _opened(path: Path, within: Path | None) -> Iterator[zipfile.ZipFile]:
    with open_regular(path, within) as file, _told_as_damage(), zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.flag_bits & 1 for entry in entries):
            raise ValueError("it is encrypted")
        if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
            raise ValueError("its compression is not one that NumPy uses")
        require_no_bomb(sum(entry.file_size for entry in entries), os.fstat(file.fileno()).st_size)
        yield archive


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    with archive.open(entry) as stream:
        array = _read(cast(BufferedIOBase, stream), entry.file_size)
        if stream.read(1):
            raise ValueError(f"{entry.filename} is longer than its header says")
        return array


def _read(stream: BufferedIOBase, size: int) -> Array:
    """Return the array in a stream of `size` bytes, after checking its header against that size."""
    head = BytesIO(stream.read(_LONGEST_HEADER))
    if (version := npy.read_magic(head)) not in _HEADERS:
        raise ValueError(f"it has version {version} of NumPy's format, which is not supported")
    shape, is_by_columns, dtype = _HEADERS[version](head)
    if dtype.kind not in "biufSU" or not dtype.itemsize:
        raise ValueError(f"it holds values of type {dtype}, which are neither numbers nor texts")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - head.tell():
        raise ValueError(f"its header says shape {shape} of {dtype}, but {size - head.tell()} bytes follow")
    array = np.empty(math.prod(shape), dtype)
    place = array.view(np.uint8).data
    begun = head.read()
    place[: len(begun)] = begun
    filled = len(begun)
    while filled < len(place):
        if not (count := stream.readinto(place[filled:])):
            raise ValueError("it ends too soon")
        filled += count
    return array.reshape(shape, order="F" if is_by_columns else "C")


@contextmanager
def _told_as_damage() -> Iterator[None]:
    try:
        yield
    except KeyError:  # the file lacks an array
        raise
    except Exception as error:  # damaged bytes can raise anything in the readers of ZIP files and NumPy headers
        raise ValueError(" ".join(str(error).split()) or "it is damaged") from error
