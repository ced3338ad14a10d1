"""The data sets by name.

A user's own is a function that returns a `Dataset`; it may ask for `root`, the folder that `data.root` names, and
`rng`, and takes what else it needs as settings of ``[data]``.
"""

from collections.abc import Callable

from atoll.data.datasets import Dataset, load, make_regression
from atoll.data.folders import read_folder


def digits() -> Dataset:
    """Scikit-learn's 1,797 images of digits, 8 x 8; needs no file."""
    return load("digits")


def mnist(root: str | None = None, fetch: bool = True) -> Dataset:
    """MNIST: 70,000 images of digits, 28 x 28 (`load`)."""
    return load("mnist", root, fetch)


def cifar10(root: str | None = None, fetch: bool = True) -> Dataset:
    """CIFAR-10: 60,000 coloured images, 32 x 32 (`load`)."""
    return load("cifar10", root, fetch)


DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "regression": make_regression,
    "mnist": mnist,
    "cifar10": cifar10,
    "folder": read_folder,
}
