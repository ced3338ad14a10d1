"""Read data sets into one pool of samples: digits is built in, MNIST and CIFAR-10 are read from files."""

import difflib
import gzip
import math
import os
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pooch

from atoll.errors import InputError
from atoll.fetch import SOURCES, download, explain_by_hand, locate, missing

_REMEDY = "put the official file in its place, or move all files of the set away and run again to download them"


@dataclass(frozen=True, eq=False)
class Dataset:
    """One pool of samples for training and one for testing.

    Two data sets are equal only if they are the same object: comparing arrays is the caller's business.

    Attributes:
        name: what it is called.
        inputs: [samples, *shape]; uint8 stay bytes until a batch is gathered.
        targets: [samples]; int64 class indices, or real numbers for regression.
        test_inputs: [test samples, *shape].
        test_targets: [test samples].
        classes: number of classes; 0 for regression.
        scale: what an input value is multiplied by when a batch is gathered.
        loss: "cross-entropy", or "squared": half the squared error, for regression.
        turns: the pool holds every image once for each of these numbers of quarter turns: sample i is image
            ``i % len(inputs)`` turned by ``turns[i // len(inputs)]``; the copies are made when a batch is gathered.
        groups: the planted group of each sample, [samples]; by default its place in `turns`.
        test_groups: the same for the test samples.
        planted: the parameters planted in each group, [groups, parameters], where they are known.
    """

    name: str
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    test_inputs: npt.NDArray[Any]
    test_targets: npt.NDArray[Any]
    classes: int
    scale: float = 1.0
    loss: str = "cross-entropy"
    turns: tuple[int, ...] = (0,)
    groups: npt.NDArray[Any] | None = None
    test_groups: npt.NDArray[Any] | None = None
    planted: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        """Return the number of training samples, turned copies included."""
        return len(self.inputs) * len(self.turns)

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Targets of all training samples, turned copies included, [len(self)]."""
        return np.tile(self.targets, (len(self.turns),) + (1,) * (self.targets.ndim - 1))

    def labels_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the targets of these training samples."""
        return np.asarray(self.targets[rows % len(self.inputs)])

    def groups_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the planted group of these training samples; all are in group 0 where nothing is planted."""
        return rows // len(self.inputs) if self.groups is None else np.asarray(self.groups[rows])

    @property
    def test(self) -> "Dataset":
        """The test samples as a pool of their own."""
        return replace(self, inputs=self.test_inputs, targets=self.test_targets, groups=self.test_groups)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, such as (1, 28, 28): channels, height, width."""
        return self.inputs.shape[1:]


def available() -> tuple[str, ...]:
    """Return the names that `load` knows.

    >>> available()
    ('digits', 'mnist', 'cifar10')
    """
    return ("digits", *SOURCES)


def load(name: str, root: str | Path | None = None, fetch: bool = True) -> Dataset:
    """Read a data set, downloading its files first if they are missing and fetch is true.

    The files are looked for in the set's own folder below the root (mnist, cifar-10-batches-bin), then in
    the root itself. The root is the argument, else the environment variable ATOLL_DATA, else the user's
    cache folder; digits needs none. Files that are there are checked for form (magic number, shape, length,
    range of labels), not for checksum, since another ordering of the samples is as good.
    Errors: InputError for an unknown name, a root that is no folder, missing or damaged files; RunError for
    a failed download.

    >>> digits = load("digits")
    >>> digits.shape, len(digits.inputs), len(digits.test_inputs)
    ((1, 8, 8), 1437, 360)
    """
    _check_name(name)
    if name == "digits":
        return _load_digits()
    folder = find(name, root)
    if folder is None:
        base = _resolve_root(root)
        if not fetch:
            raise _not_found(name, base)
        folder = download(name, base)
    return _load_mnist(folder) if name == "mnist" else _load_cifar10(folder)


def find(name: str, root: str | Path | None = None) -> Path | None:
    """Return the folder that holds all files of a data set, or None; always None for digits (no files).

    Errors: InputError for an unknown name and for a root that is no folder.
    """
    _check_name(name)
    if name == "digits":
        return None
    base = _resolve_root(root)
    folders = (base / SOURCES[name].folder, base)
    return next((folder for folder in folders if not missing(name, folder)), None)


def read_idx(path: str | Path) -> npt.NDArray[np.uint8]:
    """Read an array of bytes from an IDX file, gzipped or plain.

    The header is 0, 0, 8 (unsigned bytes), the number of dimensions, and each dimension as a big-endian
    32-bit integer. Errors: InputError, naming the file, what was expected and what was found.
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
    # A copy, since arrays over bytes objects cannot be written to and PyTorch warns about them.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def read_cifar(path: str | Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read a CIFAR-10 batch in the binary layout, gzipped or plain: images [n, 3, 32, 32] and labels [n].

    A record is one byte of label and 3,072 bytes of pixels, channel by channel, row by row.
    Errors: InputError, naming the file, what was expected and what was found.
    """
    content = _read_bytes(Path(path))
    record = 1 + 3 * 32 * 32
    if len(content) % record:
        raise _damaged(path, f"a multiple of {record} bytes (CIFAR-10 binary layout)", f"{len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    _check_labels(path, records[:, 0])
    # A copy, for the reason given in read_idx.
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64)


def _not_found(name: str, base: Path) -> InputError:
    place = base / SOURCES[name].folder
    absent = missing(name, place)
    what = ", ".join(absent) if len(absent) < len(SOURCES[name].files) else "all its files"
    return InputError(
        f"data.dataset = {name!r} lacks {what} in {place}, and fetching is off: "
        f"run `atoll data fetch {name}`, {explain_by_hand(name, base)}"
    )


def _check_name(name: str) -> None:
    if name in available():
        return
    nearest = difflib.get_close_matches(name.lower(), available(), n=1, cutoff=0.4)
    hint = f", did you mean {nearest[0]!r}?" if nearest else ";"
    raise InputError(f"data.dataset = {name!r} is not known{hint} Allowed: {', '.join(available())}")


def _resolve_root(root: str | Path | None) -> Path:
    """Choose the folder for data files; only a folder that was not given as an argument may be absent."""
    setting, value = ("data.root", root) if root else ("ATOLL_DATA", os.environ.get("ATOLL_DATA"))
    if not value:
        return Path(pooch.os_cache("atoll"))
    path = Path(os.path.expanduser(value))
    if not os.path.isdir(path) and (root or os.path.lexists(path)):
        state = "is a file" if os.path.isfile(path) else "does not exist"
        raise InputError(
            f"{setting} = '{value}' {state}: give a folder that exists, with the data files in it or to "
            "download them to, or leave it out to use the user's cache folder"
        )
    return path


def _load_digits() -> Dataset:
    """Scikit-learn's 1,797 digits: every fifth sample of the list sorted by class, stably, is for testing.

    So the split is the same in every version, and each class is split as near to 4 : 1 as it can be.
    """
    from sklearn.datasets import load_digits  # here, since it is slow to import

    images, targets = load_digits(return_X_y=True)
    inputs = images.astype(np.uint8).reshape(-1, 1, 8, 8)
    targets = targets.astype(np.int64)
    is_test = np.zeros(len(targets), dtype=bool)
    is_test[np.argsort(targets, kind="stable")[::5]] = True
    return Dataset(
        name="digits",
        inputs=inputs[~is_test],
        targets=targets[~is_test],
        test_inputs=inputs[is_test],
        test_targets=targets[is_test],
        classes=10,
        scale=1 / 16,
    )


def _load_mnist(folder: Path) -> Dataset:
    shapes = (60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,)
    arrays = []
    for file, shape in zip(SOURCES["mnist"].files, shapes, strict=True):
        path = locate(folder, file) or folder / file
        array = read_idx(path)
        if array.shape != shape:
            raise _damaged(path, _show_shape(shape), _show_shape(array.shape))
        if array.ndim == 1:
            _check_labels(path, array)
        arrays.append(array)
    inputs, targets, test_inputs, test_targets = arrays
    return Dataset(
        name="mnist",
        inputs=inputs[:, None],
        targets=targets.astype(np.int64),
        test_inputs=test_inputs[:, None],
        test_targets=test_targets.astype(np.int64),
        classes=10,
        scale=1 / 255,
    )


def _load_cifar10(folder: Path) -> Dataset:
    batches = []
    for file in SOURCES["cifar10"].files:
        path = locate(folder, file) or folder / file
        inputs, targets = read_cifar(path)
        if len(targets) != 10_000:
            raise _damaged(path, "10000 images", f"{len(targets)}")
        batches.append((inputs, targets))
    *training, (test_inputs, test_targets) = batches
    return Dataset(
        name="cifar10",
        inputs=np.concatenate([inputs for inputs, _ in training]),
        targets=np.concatenate([targets for _, targets in training]),
        test_inputs=test_inputs,
        test_targets=test_targets,
        classes=10,
        scale=1 / 255,
    )


def _read_bytes(path: Path) -> bytes:
    """Read a file, unpacking it if it is gzipped whatever its name: browsers unpack, and keep the name."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}): {_REMEDY}") from error
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise _damaged(path, "a whole gzip file", f"a cut or damaged one ({error})") from error
    if not content:
        raise _damaged(path, "data", "none")
    return content


def _check_labels(path: str | Path, labels: npt.NDArray[np.uint8]) -> None:
    if labels.size and labels.max() > 9:
        sample = int(np.argmax(labels > 9))
        raise _damaged(path, "labels from 0 to 9", f"{labels[sample]} at sample {sample}")


def _damaged(path: str | Path, expected: str, found: str) -> InputError:
    return InputError(f"{path} is damaged or another file: expected {expected}, found {found}; {_REMEDY}")


def _show_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
