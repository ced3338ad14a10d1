"""`data.dataset = "images"`: a folder of images, by class, or by client and class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dataset import Dataset
from atoll.data.dealing.partition import rows_by_owner
from atoll.data.files.folders import listed, require_root
from atoll.data.files.join import PIXEL_SCALE
from atoll.data.files.sample_files import decode_picture
from atoll.support.errors import InputError, refusing
from atoll.support.limits import Positive
from atoll.support.untrusted import read_bytes
from atoll.support.wording import natural

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
MOST_BYTES = 2**32  # of all pixels
Tree = list[tuple[Path, tuple[str, ...]]]
"""Image files with the names of the folders above them."""

_LAYOUT = "it must hold client/class/image or class/image, either all below train and test or none"


def read_images(root: str | None = None, side: Positive | None = None, test_every: int = 5) -> Dataset:
    """Read images from one folder per class; ``data.partition = "natural"`` gives each client those in its folder.

    Clients and classes are numbered in natural order of their names. Pixels stay bytes; images have one channel if all
    of them are grey, else three.

    Args:
        root: the folder, `data.root`: client/class/image or class/image, either all below train and test or none.
        side: images are resized to squares with this many pixels a side; unset: all must have the same size.
        test_every: without a folder `test`, one in this many images of each client and class is held out.
    """
    base = require_root(root, "images", "the folder of the images")
    if test_every < 2:
        raise InputError(f"data.test_every = {test_every}: must be at least 2")
    halves = [base / name for name in ("train", "test") if (base / name).is_dir()]
    trees = [_pictures_of(half) for half in (halves if len(halves) == 2 else [base])]
    found = [picture for tree in trees for picture in tree]
    if not found:
        raise InputError(f"data.root = '{base}': holds no images; {_LAYOUT}, with the suffix {', '.join(ENDINGS)}")
    depths = {len(parts) for _, parts in found}
    if len(depths) > 1 or max(depths) > (1 if len(halves) == 1 else 2) or not trees[0]:
        raise InputError(f"data.root = '{base}': has another layout; {_LAYOUT}")
    return _make(base.resolve().name, trees, has_clients=depths == {2}, side=side, test_every=test_every)


def image_files(base: Path) -> list[Path]:
    """Return all image files below a folder."""
    return [file for file, _ in _pictures_of(base)] if base.is_dir() else []


def _pictures_of(folder: Path, above: tuple[str, ...] = ()) -> Tree:
    """Return image files in order, each with the names of the folders in between."""
    found: Tree = []
    for entry in listed(folder) if folder.is_dir() else []:
        if entry.is_dir() and len(above) < 3:
            found += _pictures_of(entry, (*above, entry.name))
        elif entry.suffix.lower() in ENDINGS and above:
            found.append((entry, above))
    return found


def _make(name: str, trees: Sequence[Tree], has_clients: bool, side: int | None, test_every: int) -> Dataset:
    classes = sorted({parts[-1] for _, parts in trees[0]}, key=natural)
    clients = sorted({parts[0] for _, parts in trees[0]}, key=natural) if has_clients else []
    for file, parts in trees[-1]:
        if parts[-1] not in classes or (has_clients and parts[0] not in clients):
            raise InputError(f"{file}: is a test image, but no training image has its class, or its client")
    images = [_read_all(tree, side) for tree in trees]
    labels = [np.array([classes.index(parts[-1]) for _, parts in tree], np.int64) for tree in trees]
    place = {client: number for number, client in enumerate(clients)}
    owners = [np.array([place.get(parts[0], 0) for _, parts in tree], np.int64) for tree in trees]
    if len(trees) == 1:
        kinds = rows_by_owner(owners[0] * len(classes) + labels[0])
        is_test = np.zeros(len(labels[0]), bool)
        is_test[np.concatenate([rows[test_every - 1 :: test_every] for rows in kinds])] = True
        images = [images[0][~is_test], images[0][is_test]]
        labels, owners = ([each[0][~is_test], each[0][is_test]] for each in (labels, owners))
    if not len(labels[1]):
        raise InputError(f"{name}: no client has {test_every} images of a class to hold one out; add a folder test")
    return Dataset(
        name,
        *(images[0], labels[0], images[1], labels[1]),
        classes=len(classes),
        scale=PIXEL_SCALE,
        owners=owners[0] if has_clients else None,
        test_owners=owners[1] if has_clients else None,
        names={"targets": tuple(classes), **({"owners": tuple(clients)} if has_clients else {})},
    )


def _read_all(tree: Tree, side: int | None) -> npt.NDArray[np.uint8]:
    """Return all images as [n, channels, height, width]."""
    pictures: list[npt.NDArray[Any]] = []
    for file, _ in tree:
        with refusing(f"{file}: cannot be read as an image", Exception):  # bad bytes may raise anything in Pillow
            picture = decode_picture(read_bytes(file), side)
        if pictures and picture.shape[:2] != pictures[0].shape[:2]:
            height, width = pictures[0].shape[:2]
            raise InputError(f"{file}: its size differs from the first image's, {width} x {height}; set data.side")
        pictures.append(picture)
        if len(pictures) * picture.nbytes > MOST_BYTES:
            raise InputError(f"{file}: up to here images take over {MOST_BYTES >> 30} GiB; set a lower data.side")
    if any(picture.ndim == 3 for picture in pictures):
        stacked = np.stack([np.broadcast_to(p.reshape(*p.shape[:2], -1), (*p.shape[:2], 3)) for p in pictures])
        return np.ascontiguousarray(np.moveaxis(stacked, 3, 1))
    return np.stack(pictures)[:, None]
