"""The data sets by name, and those of data frames.

A user's own is a function that returns a `Dataset`; it may have the parameters `root`, the folder in `data.root`, and
`rng`. Its other parameters are settings of ``[data]``.
"""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from atoll.data.dataset import Dataset
from atoll.data.datasets import load, make_regression, make_sea
from atoll.data.files.folders import folder_files, read_folder
from atoll.data.files.images import image_files, read_images
from atoll.data.tabular.make import make_table
from atoll.data.tabular.packaged import read_packaged
from atoll.data.tabular.source import make_source, open_source, table_files
from atoll.data.tabular.table_settings import Wanted, with_table_settings
from atoll.support.errors import InputError
from atoll.support.extras import load_extra
from atoll.support.requiring import checked
from atoll.support.wording import unknown


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


@with_table_settings
def read_table(root: str | None = None, **settings: Any) -> Dataset:
    """Read CSV, Parquet or Arrow files as one table; ``data.partition = "natural"`` gives each client its rows.

    Numbers are standardised and texts become categories, both fitted to the training rows. The page on tables has all
    the rules.

    Args:
        root: the file, or a folder of files, `data.root`.
    """
    wanted = Wanted(**settings)
    return make_table(open_source(root, keep=wanted.about_rows), wanted)


@with_table_settings
def read_hub(repository: str, configuration: str | None = None, **settings: Any) -> Dataset:
    """Load a data set with `datasets.load_dataset`, which downloads what its cache lacks, and read it as a table.

    No code from the repository is run. Its split `test` is the test set; without one, rows are held out.

    Args:
        repository: the name after ``hf:``.
        configuration: its name, where the repository has several.
    """
    told = f"data.dataset = 'hf:{repository}':"
    datasets = load_extra("datasets", "hf", told, "Hugging Face's datasets")
    try:
        splits = datasets.load_dataset(repository, configuration)
    except Exception as error:  # from the network, the hub or the files
        raise InputError(f"{told} cannot be loaded ({' '.join(str(error).split())[:300]})") from error
    if "train" not in splits:
        raise InputError(f"{told} has no split train, only {', '.join(splits)}")
    test = splits["test"].data.table if "test" in splits else None
    return make_table(make_source(repository, splits["train"].data.table, test), Wanted(**settings))


@checked("data.{}")
def from_pandas(
    frame: Any,
    *,
    target: str | list[str] | None = None,
    client: str | list[str] | None = None,
    group: str | None = None,
    test: Any = None,
    name: str = "frame",
    **settings: Any,
) -> Dataset:
    """Return a data frame of pandas (2.2 or later), polars, or any library that exports Arrow, as a data set.

    >>> import pyarrow as pa
    >>> visits = pa.table({"ward": ["a", "b"] * 10, "age": [*range(10)] * 2, "ill": ["no", "yes"] * 10})
    >>> from_pandas(visits, client="ward", target="ill")
    Dataset('frame': 16 samples of [1], 4 to test, 2 classes)

    Args:
        frame: one row per sample; its index is not a column.
        target: the column to predict, or several; None with task="causal".
        client: the column that says which client holds a row; or several, taken together.
        group: the column with the client's planted group.
        test: a frame of test rows; None: `split` or `test_every` decides.
        name: the data set's name.
        settings: further ones of ``data.dataset = "table"``, such as ``time="date"`` (see `read_table`).

    Raises:
        InputError: if the frame or the settings do not fit, in one sentence.
    """
    known = {each.name for each in fields(Wanted)}
    if odd := [key for key in settings if key not in known]:
        raise InputError(f"from_pandas: {odd[0]}: {unknown(odd[0], known)}")
    return make_table(make_source(name, frame, test), Wanted(target=target, client=client, group=group, **settings))


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
