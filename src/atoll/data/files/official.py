"""Data sets read from their publishers' files."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from atoll.data.dataset import Dataset
from atoll.data.files.download import locate
from atoll.data.files.readers import check_labels, damaged, read_cifar, read_idx, show_shape
from atoll.data.files.sources import SOURCES


def _load_idx(folder: Path, name: str, train: int, test: int, classes: int) -> Dataset:
    shapes = (train, 28, 28), (train,), (test, 28, 28), (test,)
    arrays = []
    for file, shape in zip(SOURCES[name].files, shapes, strict=True):
        path = locate(folder, file) or folder / file
        array = read_idx(path)
        if array.shape != shape:
            raise damaged(path, show_shape(shape), show_shape(array.shape))
        if array.ndim == 1:
            check_labels(path, array, classes)
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
            raise damaged(path, f"{count} images", f"{len(targets)}")
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
