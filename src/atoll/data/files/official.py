"""Data sets read from their publishers' files: IDX (MNIST) and CIFAR-10's binary layout, gzipped or plain."""

import gzip
import io
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atoll.data.dataset import Dataset
from atoll.data.files.download import locate
from atoll.data.files.sources import SOURCES
from atoll.support.errors import InputError, refusing
from atoll.support.untrusted import read_bytes

_MOST_BYTES = 2**28
"""Limit on a file's unpacked size; the largest known one has 47 MB."""

_REMEDY = "put the official file in its place, or move all files of the set away and run again to download them"


def read_idx(path: str | Path) -> npt.NDArray[np.uint8]:
    """Read an array of bytes from an IDX file, gzipped or plain.

    The header is 0, 0, 8 (unsigned bytes), the number of dimensions, and each dimension as a big-endian 32-bit integer.
    """
    content = _read_bytes(Path(path))
    dimensions = content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08" or not 1 <= dimensions <= 4:
        raise _damaged(path, "an IDX file (first bytes 00 00 08, then 01 to 04)", content[:4].hex(" "))
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise _damaged(path, f"a header of {start} bytes", f"{len(content)} bytes")
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    size = math.prod(shape)
    if size == 0 or len(content) != start + size:
        expected = f"{start} bytes of header and {_show_shape(shape)} of data as the header says"
        raise _damaged(path, expected, f"{len(content)} bytes")
    # A copy, since arrays over bytes objects are read-only, which PyTorch warns about.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def read_cifar(path: str | Path, classes: int = 10) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read a CIFAR batch in the binary layout, gzipped or plain: images [n, 3, 32, 32] and labels [n].

    A record is one byte of label and 3,072 bytes of pixels, channel by channel, row by row; with 100 classes, a coarse
    label (of 20) precedes the label.
    """
    content = _read_bytes(Path(path))
    labels = 1 if classes == 10 else 2
    record = labels + 3 * 32 * 32
    if len(content) % record:
        raise _damaged(path, f"a multiple of {record} bytes (CIFAR-{classes} binary layout)", f"{len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    own = records[:, labels - 1]
    _check_labels(path, own, classes)
    # A copy, for the reason given in read_idx.
    return records[:, labels:].reshape(-1, 3, 32, 32).copy(), own.astype(np.int64)


def _read_bytes(path: Path) -> bytes:
    """Read a file, unpacked if it is gzipped, whatever its name: browsers unpack files but keep their names."""
    with refusing(f"{path} cannot be read", hint=f": {_REMEDY}"):
        content = read_bytes(path, most=_MOST_BYTES)
    if content.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(_MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise _damaged(path, "a whole gzip file", f"a cut or damaged one ({error})") from error
    if len(content) > _MOST_BYTES:
        raise _damaged(path, f"at most {_MOST_BYTES >> 20} MiB", "more")
    if not content:
        raise _damaged(path, "data", "none")
    return content


def _check_labels(path: str | Path, labels: npt.NDArray[np.uint8], classes: int = 10) -> None:
    """Refuse labels above the last class, naming the file and the sample."""
    if labels.size and labels.max() >= classes:
        sample = int(np.argmax(labels >= classes))
        raise _damaged(path, f"labels from 0 to {classes - 1}", f"{labels[sample]} at sample {sample}")


def _damaged(path: str | Path, expected: str, found: str) -> InputError:
    return InputError(f"{path} is damaged or another file: expected {expected}, found {found}; {_REMEDY}")


def _show_shape(shape: tuple[int, ...]) -> str:
    """Return a shape in words, such as 60000 x 28 x 28."""
    return " x ".join(map(str, shape))


def _load_idx(folder: Path, name: str, train: int, test: int, classes: int) -> Dataset:
    shapes = (train, 28, 28), (train,), (test, 28, 28), (test,)
    arrays = []
    for file, shape in zip(SOURCES[name].files, shapes, strict=True):
        path = locate(folder, file) or folder / file
        array = read_idx(path)
        if array.shape != shape:
            raise _damaged(path, _show_shape(shape), _show_shape(array.shape))
        if array.ndim == 1:
            _check_labels(path, array, classes)
        arrays.append(array)
    inputs, targets, test_inputs, test_targets = arrays
    pools = inputs[:, None], targets.astype(np.int64), test_inputs[:, None], test_targets.astype(np.int64)
    return Dataset(name, *pools, classes=classes, scale=1 / 255)


def _load_emnist(folder: Path) -> Dataset:
    """EMNIST's balanced split, whose files hold each image column by column."""
    data = _load_idx(folder, "emnist", 112_800, 18_800, classes=47)
    upright = {pool: np.ascontiguousarray(getattr(data, pool).swapaxes(2, 3)) for pool in ("inputs", "test_inputs")}
    return replace(data, inputs=upright["inputs"], test_inputs=upright["test_inputs"])


def _load_cifar(folder: Path, name: str, images: tuple[int, ...], classes: int) -> Dataset:
    """CIFAR's binary files, with this many images each; the last one is the test set."""
    batches = []
    for file, count in zip(SOURCES[name].files, images, strict=True):
        path = locate(folder, file) or folder / file
        inputs, targets = read_cifar(path, classes)
        if len(targets) != count:
            raise _damaged(path, f"{count} images", f"{len(targets)}")
        batches.append((inputs, targets))
    *training, test = batches
    inputs, targets = map(np.concatenate, zip(*training, strict=True))
    return Dataset(name, inputs, targets, *test, classes=classes, scale=1 / 255)


LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "mnist": partial(_load_idx, name="mnist", train=60_000, test=10_000, classes=10),
    "fashion-mnist": partial(_load_idx, name="fashion-mnist", train=60_000, test=10_000, classes=10),
    "emnist": _load_emnist,
    "cifar10": partial(_load_cifar, name="cifar10", images=(10_000,) * 6, classes=10),
    "cifar100": partial(_load_cifar, name="cifar100", images=(50_000, 10_000), classes=100),
}
