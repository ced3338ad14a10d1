"""Reading NumPy's files that somebody else may have made: no pickle, no more memory than there is content.

What cannot be opened raises OSError, content that is not what it should be ValueError, as in `support.untrusted`.
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
MOST_TIMES = 128  # as large as packed; MNIST's images take 5 times their packed size, a blank picture 1,000 times
_LONGEST_HEADER = 2**16
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def require_no_bomb(unpacked: int, packed: int) -> None:
    """Refuse content that takes much memory and hardly any room in its file.

    Args:
        unpacked: bytes that it takes in memory.
        packed: bytes of the file.

    Raises:
        ValueError: it takes more than 256 MiB and more than 128 times its file's size.
    """
    if unpacked > max(MODEST_BYTES, MOST_TIMES * packed):
        raise ValueError(
            f"its {packed:,} bytes unpack to {unpacked:,}, more than {MOST_TIMES} times as many; if this is right, "
            "write it without compression"
        )


def read_npy(path: Path, within: Path | None = None) -> Array:
    """Return the array of a .npy file.

    Raises:
        OSError: it cannot be opened, or lies outside the folder `within`.
        ValueError: it is none of numbers or texts, or not as long as it says.
    """
    with open_regular(path, within) as file, _told_as_damage():
        return _read(file, os.fstat(file.fileno()).st_size)


def names_in_npz(path: Path) -> list[str]:
    """Return the names of the arrays in an .npz file.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is none.
    """
    with _opened(path, None) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_npz(path: Path, names: Iterable[str] | None = None, within: Path | None = None) -> dict[str, Array]:
    """Return the arrays of an .npz file, all or some; each is compared with its checksum.

    Raises:
        OSError: it cannot be opened, or lies outside the folder `within`.
        KeyError: it has no array of a name.
        ValueError: it is damaged, encrypted, takes far more memory than its size lets expect, or holds something else.
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
            raise ValueError("it is compressed in another way than NumPy does")
        require_no_bomb(sum(entry.file_size for entry in entries), os.fstat(file.fileno()).st_size)
        yield archive


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    with archive.open(entry) as stream:
        array = _read(cast(BufferedIOBase, stream), entry.file_size)
        if stream.read(1):
            raise ValueError(f"{entry.filename} is longer than it says")
        return array


def _read(stream: BufferedIOBase, size: int) -> Array:
    """Return the array of a stream of so many bytes, having compared these with what it says of itself."""
    head = BytesIO(stream.read(_LONGEST_HEADER))
    if (version := npy.read_magic(head)) not in _HEADERS:
        raise ValueError(f"it has version {version} of NumPy's format, which is not read")
    shape, is_by_columns, dtype = _HEADERS[version](head)
    if dtype.kind not in "biufSU" or not dtype.itemsize:
        raise ValueError(f"it holds values of the type {dtype}, neither numbers nor texts")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - head.tell():
        raise ValueError(f"it says that it has the shape {shape} of {dtype}, but {size - head.tell()} bytes follow")
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
    except KeyError:  # of an array that the file does not have
        raise
    except Exception as error:  # whatever bytes may do to the readers of ZIP files and of NumPy's headers
        raise ValueError(" ".join(str(error).split()) or "it is damaged") from error
