"""A data set of one's own: JSON files as LEAF writes them (FEMNIST, Shakespeare; Caldas et al. 2019).

Put this file beside an experiment's file with ``data.dataset = "leaf:read_leaf"``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dataset import Dataset
from atoll.data.files.folders import listed, require_root
from atoll.data.files.join import Part, join, make_part, together
from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.untrusted import parse_json, read_bytes
from atoll.support.wording import natural, show

MOST_BYTES = 2**30  # of a file
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters of LEAF's Shakespeare, numbered in this order; all others share the next number."""


def read_leaf(root: str | None = None, side: Positive | None = None, test_every: int = 5) -> Dataset:
    """Read LEAF's JSON; ``data.partition = "natural"`` makes each user a client.

    A user's inputs are lists of numbers, or texts of one length, whose characters become numbers; its targets are whole
    numbers, or each text's next character. Users are numbered in natural order of their names.

    Args:
        root: `data.root`: one JSON file, or a folder with such files, either directly or in train and test.
        side: inputs are images with this many pixels a side; unset: inputs stay flat.
        test_every: without a folder `test`, one in this many of each user's samples is held out.
    """
    base = require_root(root, "leaf", "the folder of the JSON files")
    files = {half: _files_in(base / half) for half in ("train", "test")}
    trains = _users(files["train"] or leaf_files(base), side)
    tests = _users(files["test"], side) if files["train"] else {}
    if not trains:
        raise InputError(f"data.root = '{base}': holds no .json files, neither directly nor in train and test")
    names = sorted(trains, key=natural)
    is_common, fault = (
        bool(tests) and not set(tests) & set(trains),
        "the test users' samples differ in shape or type; all must be alike",
    )
    made = join(
        name=base.resolve().stem,
        clients=[trains[name] for name in names],
        tests=[tests.get(name) for name in names],
        common_test=together(list(tests.values()), "the test users", fault) if is_common else None,
        classes=len(LETTERS) + 1 if next(iter(trains.values())).inputs.dtype == np.uint8 else None,
        scale=1.0,
        test_every=test_every,
    )
    object.__setattr__(made, "names", {"owners": tuple(" ".join(name.split())[:200] for name in names)})
    return made


def leaf_files(base: Path) -> list[Path]:
    """Return the one file, or a folder's JSON files: those in `train` and `test`, or its own."""
    if base.is_file():
        return [base]
    return [*_files_in(base / "train"), *_files_in(base / "test")] or _files_in(base)


def _files_in(folder: Path) -> list[Path]:
    return [file for file in listed(folder) if file.suffix == ".json"] if folder.is_dir() else []


def _users(files: list[Path], side: int | None) -> dict[str, Part]:
    found: dict[str, Part] = {}
    for file in files:
        for user, part in _parts_of(file, side):
            if user in found:
                raise InputError(f"{file}: user {show(user)} is in another file too; users' names must be unique")
            found[user] = part
    return found


def _parts_of(file: Path, side: int | None) -> Iterator[tuple[str, Part]]:
    try:
        content = parse_json(read_bytes(file, most=MOST_BYTES))
        pairs = [(user, content["user_data"][user]) for user in content["users"]]
        held = [(user, data["x"], data["y"]) for user, data in pairs]
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: must hold users, and user_data with each one's x and y ({error})") from error
    for user, x, y in held:
        source = f"{file}: user {show(user)}"
        yield str(user), make_part(source, _inputs_of(source, x, side), _targets_of(source, y))


def _inputs_of(source: str, values: Any, side: int | None) -> npt.NDArray[Any]:
    if isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        if len({len(each) for each in values}) > 1:
            raise InputError(f"{source}: its texts differ in length; all must have the same")
        return np.array([[_code(letter) for letter in text] for text in values], np.uint8)
    array = _numbers(source, values)
    if side is None:
        return array
    if array.ndim != 2 or array.shape[1] % side**2:
        raise InputError(f"data.side = {side}: {source} has inputs of shape {list(array.shape[1:])}, not such images")
    return array.reshape(len(array), -1, side, side)


def _targets_of(source: str, values: Any) -> npt.NDArray[Any]:
    if isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        if any(len(each) != 1 for each in values):
            raise InputError(f"{source}: its targets are texts; they must be single characters")
        return np.array([_code(letter) for letter in values], np.int64)
    return _numbers(source, values)


def _numbers(source: str, values: Any) -> npt.NDArray[Any]:
    try:
        return np.array(values, dtype=None) if isinstance(values, list) else np.empty(0)
    except ValueError as error:
        raise InputError(f"{source}: its lists differ in length") from error


def _code(letter: str) -> int:
    place = LETTERS.find(letter)
    return len(LETTERS) if place < 0 else place
