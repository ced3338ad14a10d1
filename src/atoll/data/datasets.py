"""The built-in data sets: digits and regression need no files; others are downloaded once, then read from files."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dataset import Dataset
from atoll.data.files.download import download, explain_by_hand, missing
from atoll.data.files.official import LOADERS
from atoll.data.files.sources import SOURCES
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.limits import BelowOne, NotNegative, Positive, PositiveFloat
from atoll.support.requiring import require, require_path
from atoll.support.seeds import generator
from atoll.support.wording import nearest

BUILT_IN = ("digits", "regression", "sea")  # need no files


def available() -> tuple[str, ...]:
    """Return the names that `load` knows.

    >>> available()
    ('digits', 'regression', 'sea', 'mnist', 'cifar10', 'fashion-mnist', 'emnist', 'cifar100')
    """
    return (*BUILT_IN, *SOURCES)


def load(name: str, root: str | Path | None = None, fetch: bool = True) -> Dataset:
    """Read a data set, after downloading its files if they are missing and `fetch` is true.

    The files may be in the set's own folder below the root (mnist, cifar-10-batches-bin) or in the root itself. The
    root is the argument, else the environment variable ATOLL_DATA, else the user's cache folder. Existing files are
    checked for form (magic number, shape, length, range of labels) but not by checksum, since another order of the
    samples is equally valid.

    Raises:
        InputError: if the name is unknown, the root is not a folder, or files are missing or damaged.
        RunError: if the download failed.

    >>> digits = load("digits")
    >>> digits.shape, len(digits.inputs), len(digits.test_inputs)
    ((1, 8, 8), 1437, 360)
    """
    require("data.dataset", name, str)
    if root is not None:
        require_path("data.root", root)
    _check_name(name)
    if name in BUILT_IN:
        rng = generator(0, "regression")
        return _load_digits() if name == "digits" else (make_sea if name == "sea" else make_regression)(rng)
    folder = find(name, root)
    if folder is None:
        base = _resolve_root(root)
        if not fetch:
            place = base / SOURCES[name].folder
            absent = missing(name, place)
            what = ", ".join(absent) if len(absent) < len(SOURCES[name].files) else "all its files"
            raise InputError(
                f"data.dataset = {name!r} lacks {what} in {place}, and downloading is off: "
                f"run `atoll data fetch {name}`, {explain_by_hand(name, base)}"
            )
        folder = download(name, base)
    return LOADERS[name](folder)


def find(name: str, root: str | Path | None = None) -> Path | None:
    """Return the folder that holds all files of a data set, or None; always None for those that need no files."""
    _check_name(name)
    if name in BUILT_IN:
        return None
    base = _resolve_root(root)
    return next((folder for folder in (base / SOURCES[name].folder, base) if not missing(name, folder)), None)


def make_regression(
    rng: np.random.Generator,
    clients: int = 100,
    samples: Positive = 50,
    groups: Positive = 2,
    width: Positive = 10,
    noise: NotNegative = 0.1,
    distance: PositiveFloat = 1.0,
) -> Dataset:
    """Draw a mixed linear regression with planted parameters: ``y = <theta_p, x> + noise * e``, x and e normal.

    The theta_p of any two groups are `distance` apart. The pool has `samples` for each of `clients`, sorted by group,
    so that the partition `planted` gives each client one group. The test set has at least 100 samples per group.

    Args:
        samples: samples per client.
        groups: number of planted parameter vectors.
        width: length of an input.
        noise: standard deviation of the targets' noise.
        distance: between any two planted vectors.
    """
    if not 1 <= groups <= min(width, clients):
        raise InputError(f"data.groups = {groups}: must be from 1 to width = {width} and to data.clients = {clients}")
    if noise < 0 or distance <= 0:
        raise InputError(f"data.noise = {noise}, data.distance = {distance}: must be at least 0, and greater than 0")
    planted = np.linalg.qr(rng.normal(size=(width, groups)))[0].T * distance / np.sqrt(2)

    def draw(owner: Ids) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        inputs = rng.normal(size=(len(owner), width))
        targets = (inputs * planted[owner]).sum(axis=1) + noise * rng.normal(size=len(owner))
        return inputs.astype(np.float32), targets.astype(np.float32)

    owner = np.repeat(np.arange(clients) * groups // clients, samples)
    test_owner = np.repeat(np.arange(groups), max(100, samples))
    pools = *draw(owner), *draw(test_owner)
    return Dataset(
        "regression", *pools, classes=0, loss="squared", groups=owner, test_groups=test_owner, planted=planted
    )


SEA = (8.0, 9.0, 7.0, 9.5)


def make_sea(rng: np.random.Generator, pool: Positive = 15_000, flips: BelowOne = 0.1) -> Dataset:
    """Draw the SEA concepts: three uniform numbers from 0 to 10, and class 1 if the first two sum to more than theta_p.

    Street and Kim 2001, "A streaming ensemble algorithm (SEA) for large-scale classification". The planted group p is
    the concept, with theta = 8, 9, 7, 9.5. The test set has a fifth as many samples, without noise.

    Args:
        pool: samples of each concept.
        flips: share of the training labels that are flipped.
    """
    pools: list[npt.NDArray[Any]] = []
    for each in (pool, max(1, pool // 5)):
        groups = np.repeat(np.arange(len(SEA)), each)
        inputs = rng.uniform(0, 10, (len(groups), 3))
        flipped = rng.uniform(size=len(groups)) < flips * (not pools)
        pools += inputs.astype(np.float32), (inputs[:, :2].sum(axis=1) > np.take(SEA, groups)) ^ flipped, groups
    inputs, targets, groups, test_inputs, test_targets, test_groups = pools
    return Dataset("sea", inputs, targets, test_inputs, test_targets, 2, groups=groups, test_groups=test_groups)


def _check_name(name: str) -> None:
    if name not in available():
        meant = nearest(name, available(), cutoff=0.4)
        hint = f", did you mean {meant!r}?" if meant else "."
        raise InputError(f"data.dataset = {name!r}: cannot be loaded by name{hint} Allowed: {', '.join(available())}")


def _resolve_root(root: str | Path | None) -> Path:
    """Return the folder for data files; one that is named explicitly must exist."""
    setting, value = ("data.root", root) if root else ("ATOLL_DATA", os.environ.get("ATOLL_DATA"))
    if not value:
        import pooch

        return Path(pooch.os_cache("atoll"))
    path = Path(os.path.expanduser(value)).absolute()
    if not os.path.isdir(path) and (root or os.path.lexists(path)):
        state = "is a file" if os.path.isfile(path) else "does not exist"
        raise InputError(
            f"{setting} = '{path}' {state}: give an existing folder, with the data files or to download them to, or "
            "leave it out to use the user's cache folder"
        )
    return path


def _load_digits() -> Dataset:
    """Return scikit-learn's 1,797 digits: every fifth sample, after stable sorting by class, is for testing.

    The split thus does not depend on the version, and each class is split as nearly 4 : 1 as possible.
    """
    inputs, targets = _read_digits()
    inputs = inputs.astype(np.uint8).reshape(-1, 1, 8, 8)
    targets = targets.astype(np.int64)
    is_test = np.zeros(len(targets), dtype=bool)
    is_test[np.argsort(targets, kind="stable")[::5]] = True
    pools = inputs[~is_test], targets[~is_test], inputs[is_test], targets[is_test]
    return Dataset("digits", *pools, classes=10, scale=1 / 16)


def _read_digits() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return scikit-learn's images and classes, from its own file: importing it takes two seconds."""
    found = find_spec("sklearn")
    folders = found.submodule_search_locations if found else None
    file = Path(folders[0], "datasets", "data", "digits.csv.gz") if folders else None
    if file is None or not file.is_file():  # another version keeps it elsewhere
        from sklearn.datasets import load_digits

        images, targets = load_digits(return_X_y=True)
        return images, targets
    rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1], rows[:, -1]
