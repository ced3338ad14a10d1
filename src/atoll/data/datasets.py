"""Read data sets into one pool of samples: digits is built in, MNIST and CIFAR-10 are read from files."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dataset_checks import checked_parts
from atoll.data.files.download import SOURCES, download, explain_by_hand, missing
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.limits import NotNegative, Positive, PositiveFloat
from atoll.support.requiring import require, require_path
from atoll.support.seeds import generator

BUILT_IN = ("digits", "regression")  # need no files
_KINDS = {"squared": "real targets", "binary-cross-entropy": "labels that apply or not"}


@dataclass(frozen=True)
class Standard:
    """How inputs, times their data set's `scale`, are standardised when a batch is gathered.

    Attributes:
        means: what each channel is reduced by, [channels]; empty: each input has its own mean and deviation.
        deviations: what it is then divided by, [channels].
    """

    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that do not go together."""
        if len(self.means) != len(self.deviations) or not all(value > 0 for value in self.deviations):
            raise InputError(
                f"standard: {len(self.means)} means and the deviations {list(self.deviations)}: must be one of each a "
                "channel, and deviations positive"
            )

    def __str__(self) -> str:
        """Say it in words, such as 'less 0.1307, over 0.3081'."""
        if not self.means:
            return "each less its own mean, over its own deviation"
        less, over = (", ".join(f"{value:.4g}" for value in values) for values in (self.means, self.deviations))
        return f"less {less}, over {over}" + (" by channel" if len(self.means) > 1 else "")


@dataclass(frozen=True, eq=False)
class Dataset:
    """One pool of samples for training and one for testing.

    Two data sets are equal only if they are the same object: comparing arrays is the caller's business.

    Attributes:
        name: what it is called.
        inputs: [samples, *shape]; uint8 stay bytes until a batch is gathered.
        targets: [samples]; int64 class indices, or real numbers for regression, also several: [samples, numbers].
        test_inputs: [test samples, *shape].
        test_targets: [test samples].
        classes: number of classes; 0 for regression.
        scale: what an input value is multiplied by when a batch is gathered.
        standard: how inputs are standardised after that; None: they are not.
        loss: "cross-entropy", or "squared": half the squared error, for regression; or "binary-cross-entropy" for
            several labels that each apply or not, `targets` [samples, labels] of 0 and 1.
        turns: the pool holds every image once for each of these numbers of quarter turns: sample i is image
            ``i % len(inputs)`` turned by ``turns[i // len(inputs)]``; the copies are made when a batch is gathered.
        groups: the planted group of each sample, [samples]; by default its place in `turns`.
        test_groups: the same for the test samples.
        planted: the parameters planted in each group, [groups, parameters], where they are known.
        owners: the client that holds each sample, [samples], where the data says so (`partition.natural`).
        test_owners: the same for the test samples, where clients have their own.
        names: what things are called, by number, where that is known: of "inputs", "targets", "owners", "groups".

    Arrays may be given as lists, tensors, or Series and frames of pandas, of any type of number; labels become int64,
    those that are texts in the order of their names.

    Raises:
        InputError: parts that are no finite numbers, that do not fit each other, or labels out of range.
    """

    name: str
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    test_inputs: npt.NDArray[Any]
    test_targets: npt.NDArray[Any]
    classes: int
    scale: float = 1.0
    standard: Standard | None = None
    loss: str = "cross-entropy"
    turns: tuple[int, ...] = (0,)
    groups: npt.NDArray[Any] | None = None
    test_groups: npt.NDArray[Any] | None = None
    planted: Floats | None = None
    owners: npt.NDArray[Any] | None = None
    test_owners: npt.NDArray[Any] | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what was given as arrays, and refuse parts that do not fit each other."""
        for name, value in checked_parts(self).items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Say how much there is of it, not all of it."""
        kind = f"{self.classes} classes" if self.classes else _KINDS[self.loss]
        counts = f"{len(self):,} samples of {list(self.shape)}, {len(self.test_inputs):,} to test"
        return f"Dataset({self.name!r}: {counts}, {kind})"

    def __len__(self) -> int:
        """Return the number of training samples, turned copies included."""
        return len(self.inputs) * len(self.turns)

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for an input: one a class, or one a target."""
        return self.classes or int(np.prod(self.targets.shape[1:]))

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Targets of all training samples, turned copies included, [len(self)]; of several, the first of each."""
        first = self.targets if self.targets.ndim == 1 else self.targets.reshape(len(self.targets), -1)[:, 0]
        return np.tile(first, len(self.turns))

    def inputs_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the inputs of these training samples as stored, turned copies turned, [len(rows), *shape]."""
        inputs, copies = self.inputs[rows % len(self.inputs)], rows // len(self.inputs)
        for copy in np.unique(copies):
            own = copies == copy
            if self.turns[copy]:
                inputs[own] = np.rot90(inputs[own], self.turns[copy], axes=(-2, -1))
        return np.asarray(inputs)

    def labels_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the targets of these training samples."""
        return np.asarray(self.targets[rows % len(self.inputs)])

    def groups_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the planted group of these training samples; all are in group 0 where nothing is planted."""
        return rows // len(self.inputs) if self.groups is None else np.asarray(self.groups[rows])

    @property
    def test(self) -> "Dataset":
        """The test samples as a pool of their own."""
        return replace(
            self,
            inputs=self.test_inputs,
            targets=self.test_targets,
            groups=self.test_groups,
            owners=self.test_owners,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, such as (1, 28, 28): channels, height, width."""
        return self.inputs.shape[1:]


def available() -> tuple[str, ...]:
    """Return the names that `load` knows.

    >>> available()
    ('digits', 'regression', 'mnist', 'cifar10', 'fashion-mnist', 'emnist', 'cifar100')
    """
    return (*BUILT_IN, *SOURCES)


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
    require("data.dataset", name, str)
    if root is not None:
        require_path("data.root", root)
    _check_name(name)
    if name in BUILT_IN:
        return _load_digits() if name == "digits" else make_regression(generator(0, "regression"))
    folder = find(name, root)
    if folder is None:
        base = _resolve_root(root)
        if not fetch:
            raise _not_found(name, base)
        folder = download(name, base)
    from atoll.data.files.official import LOADERS  # which makes such data sets

    return LOADERS[name](folder)


def find(name: str, root: str | Path | None = None) -> Path | None:
    """Return the folder that holds all files of a data set, or None; always None for digits (no files).

    Errors: InputError for an unknown name and for a root that is no folder.
    """
    _check_name(name)
    if name in BUILT_IN:
        return None
    base = _resolve_root(root)
    folders = (base / SOURCES[name].folder, base)
    return next((folder for folder in folders if not missing(name, folder)), None)


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

    The theta_p of any two groups are `distance` apart. The pool has `samples` for each of `clients`, in blocks of
    groups, so that the partition `planted` gives each client one group. The test set has at
    least 100 samples a group.

    Args:
        samples: samples a client.
        groups: planted parameter vectors.
        width: length of an input.
        noise: deviation of the targets' noise.
        distance: between any two planted vectors.

    Errors: InputError for more groups than `width` (the distances could not be equal) or than clients.
    """
    if not 1 <= groups <= min(width, clients):
        raise InputError(f"data.groups = {groups}: must be from 1 to width = {width} and to data.clients = {clients}")
    if noise < 0 or distance <= 0:
        raise InputError(f"data.noise = {noise}, data.distance = {distance}: must be at least 0, and greater than 0")
    directions = np.linalg.qr(rng.normal(size=(width, groups)))[0].T
    planted = directions * distance / np.sqrt(2)

    def draw(owner: Ids) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        inputs = rng.normal(size=(len(owner), width))
        targets = (inputs * planted[owner]).sum(axis=1) + noise * rng.normal(size=len(owner))
        return inputs.astype(np.float32), targets.astype(np.float32)

    owner = np.repeat(np.arange(clients) * groups // clients, samples)
    test_owner = np.repeat(np.arange(groups), max(100, samples))
    inputs, targets = draw(owner)
    test_inputs, test_targets = draw(test_owner)
    return Dataset(
        name="regression",
        inputs=inputs,
        targets=targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        classes=0,
        loss="squared",
        groups=owner,
        test_groups=test_owner,
        planted=planted,
    )


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
    raise InputError(
        f"data.dataset = {name!r} is not known{hint} Allowed: {', '.join(available())}, folder (data.root: one file or "
        "sub-folder a client) and module:function"
    )


def _resolve_root(root: str | Path | None) -> Path:
    """Choose the folder for data files; only a folder that was not given as an argument may be absent."""
    setting, value = ("data.root", root) if root else ("ATOLL_DATA", os.environ.get("ATOLL_DATA"))
    if not value:
        import pooch

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
