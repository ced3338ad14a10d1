"""The data sets by name.

A user's own is a function that returns a `Dataset`; it may have the parameters `root`, the folder in `data.root`, and
`rng`. Its other parameters are settings of ``[data]``.
"""

from collections.abc import Callable
from pathlib import Path

from atoll.data.dataset import Dataset
from atoll.data.datasets import load, make_regression, make_sea
from atoll.data.files.folders import folder_files, read_folder
from atoll.data.files.images import image_files, read_images
from atoll.data.tabular.hub import read_hub
from atoll.data.tabular.packaged import read_packaged
from atoll.data.tabular.read import read_table
from atoll.data.tabular.source import table_files


def digits() -> Dataset:
    """Scikit-learn's 1,797 images of digits, 8 x 8; needs no file."""
    return load("digits")


def mnist(root: str | None = None, fetch: bool = True) -> Dataset:
    """MNIST: 70,000 images of digits, 28 x 28 (`load`)."""
    return load("mnist", root, fetch)


def cifar10(root: str | None = None, fetch: bool = True) -> Dataset:
    """CIFAR-10: 60,000 coloured images, 32 x 32 (`load`)."""
    return load("cifar10", root, fetch)


def fashion_mnist(root: str | None = None, fetch: bool = True) -> Dataset:
    """Fashion-MNIST: 70,000 pictures of clothes, 28 x 28 (`load`)."""
    return load("fashion-mnist", root, fetch)


def emnist(root: str | None = None, fetch: bool = True) -> Dataset:
    """EMNIST's balanced split: 131,600 images of 47 digits and letters, 28 x 28 (`load`)."""
    return load("emnist", root, fetch)


def cifar100(root: str | None = None, fetch: bool = True) -> Dataset:
    """CIFAR-100: 60,000 coloured images of 100 classes, 32 x 32 (`load`)."""
    return load("cifar100", root, fetch)


DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "regression": make_regression,
    "sea": make_sea,
    "mnist": mnist,
    "cifar10": cifar10,
    "fashion-mnist": fashion_mnist,
    "emnist": emnist,
    "cifar100": cifar100,
    "folder": read_folder,
    "table": read_table,
    "images": read_images,
    "hf": read_hub,
    "packaged": read_packaged,
}

FILES: dict[str, Callable[[Path], list[Path]]] = {"folder": folder_files, "table": table_files, "images": image_files}
"""For data sets read from a user's files: the files that `data.root` stands for."""


def files_at(dataset: str, root: str | None) -> list[Path]:
    """Return the files that a data set is read from, if they are the user's."""
    return FILES[dataset](Path(root).expanduser()) if dataset in FILES and root else []


def stamp(dataset: str, root: str | None) -> tuple[tuple[str, int, int], ...]:
    """Return what shows whether these files have changed: the path, modification time and size of each."""
    return tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files_at(dataset, root))
