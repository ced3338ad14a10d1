"""`data.dataset = "folder"`: a folder with one file or one subfolder per client."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from atoll.data.dataset import Dataset
from atoll.data.files.join import Part, join, make_part, together
from atoll.data.files.sample_files import open_arrays, open_table, read_samples
from atoll.support.errors import InputError
from atoll.support.wording import natural

TABLES = (".parquet", ".npz")
_IN_SUBFOLDER = "train.parquet, train.npz or inputs.npy and targets.npy"
_LAYOUT = f"it must hold one .parquet or .npz file per client, or one subfolder per client with {_IN_SUBFOLDER}"
_IS_TEST = re.compile(r"test([-_.]|$)")
_IS_TRAIN = re.compile(r"train([-_.]|$)")


def read_folder(
    root: str | None = None,
    inputs: str | list[str] | None = None,
    targets: str | None = None,
    classes: int | None = None,
    scale: float | None = None,
    channels_last: bool = False,
    test_every: int = 5,
) -> Dataset:
    """Read a folder with one file or subfolder per client; ``data.partition = "natural"`` gives each client its own.

    Clients are numbered in natural order of their names (client 2 before client 10). A file is .npz or Parquet, whose
    columns may hold numbers, nested lists of numbers, or encoded images as Hugging Face stores them. A subfolder holds
    ``train.*``, or ``inputs.npy`` and ``targets.npy``; if the client has test samples of its own, also ``test.*``, or
    ``test_inputs.npy`` and ``test_targets.npy``. A file or subfolder ``test`` beside the clients is a common test set.

    Args:
        root: the folder, `data.root`.
        inputs: the column of inputs, or several columns of numbers.
        targets: the column of targets.
        classes: number of classes; unset: one more than the largest label.
        scale: factor applied to input values; unset: 1/255 for uint8, else 1.
        channels_last: arrays of images are [n, height, width, channels].
        test_every: without any test samples, one in this many of each client's samples is held out.
    """
    base = require_root(root, "folder", "the folder of the clients' files")
    if not base.is_dir():
        state = "is a file" if base.is_file() else "does not exist"
        raise InputError(f"data.root = '{base}' {state}: give a folder; {_LAYOUT}")
    read = partial(_read_part, inputs=inputs, targets=targets, channels_last=channels_last)
    entries = [entry for entry in listed(base) if entry.is_dir() or entry.suffix in TABLES]
    common = [entry for entry in entries if _IS_TEST.match(entry.name)]
    clients = [entry for entry in entries if entry not in common]
    if not clients:
        raise InputError(f"data.root = '{base}' holds no clients: {_LAYOUT}")
    trains, tests = zip(*(_files_of(entry) for entry in clients), strict=True)
    held_out = [file for entry in common for file in _data_files(entry)]
    return join(
        name=base.resolve().name,
        clients=[read(files) for files in trains],
        tests=[read(files) if files else None for files in tests],
        common_test=read(held_out) if held_out else None,
        classes=classes,
        scale=scale,
        test_every=test_every,
    )


def folder_files(base: Path) -> list[Path]:
    """Return the files of all clients."""
    entries = listed(base) if base.is_dir() else []
    return [file for entry in entries for file in _data_files(entry)]


def require_root(root: str | None, dataset: str, what: str) -> Path:
    """Return the absolute path in `data.root`."""
    if root is None:
        raise InputError(f"data.root is not set: with data.dataset = {dataset!r} it is {what}")
    return Path(root).expanduser().absolute()


def listed(folder: Path) -> list[Path]:
    """Return the entries of a folder in natural order, without hidden ones."""
    return sorted(
        (entry for entry in folder.iterdir() if not entry.name.startswith(".")), key=lambda entry: natural(entry.name)
    )


def _data_files(entry: Path) -> list[Path]:
    """Return an entry that is a file of data, or those in a folder."""
    if entry.is_file():
        return [entry] if entry.suffix in TABLES else []
    return [file for file in listed(entry) if file.is_file() and file.suffix in (*TABLES, ".npy")]


def _files_of(entry: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of a client's training and test samples."""
    if entry.is_file():
        return [entry], []
    files = _data_files(entry)
    tests = [file for file in files if _IS_TEST.match(file.name)]
    named = [file for file in files if _IS_TRAIN.match(file.name)]
    trains = named or [file for file in files if file not in tests]
    if not trains:
        raise InputError(f"{entry}: this client's folder has no training samples; it must hold {_IN_SUBFOLDER}")
    tables = [file for file in trains if file.suffix in TABLES]
    if not named and len(tables) > 1:
        told = f"{entry}: holds {len(tables)} files; if they belong to one client, name them train-*;"
        raise InputError(f"{told} if each is a client, set data.root to this folder")
    return trains, tests


def _read_part(files: Sequence[Path], inputs: str | list[str] | None, targets: str | None, channels_last: bool) -> Part:
    """Return the samples of one or several files that belong together."""
    arrays = [file for file in files if file.suffix == ".npy"]
    tables = [(open_table(file), str(file)) for file in files if file.suffix in TABLES]
    if arrays:
        tables.append((open_arrays(arrays, ("train_", "test_", "train-", "test-")), str(arrays[0].parent)))
    parts = []
    for table, source in tables:
        own_inputs, own_targets, is_last = read_samples(table, source, inputs, targets)
        parts.append(make_part(source, own_inputs, own_targets, channels_last or is_last))
    if len(parts) == 1:
        return parts[0]
    folder = str(files[0].parent)
    return together(parts, folder, f"{folder}: its files hold samples of different shapes or types")
