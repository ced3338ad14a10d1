"""Clients' samples, checked and joined into one data set that knows which client holds which."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dataset import Dataset
from atoll.support.errors import InputError

PIXEL_SCALE = 1 / 255
MOST_CLASSES = 2**16


@dataclass(frozen=True, eq=False)
class Part:
    """The samples of one client, or of a test set.

    Attributes:
        source: where they come from, for errors.
        inputs: [samples, *shape].
        targets: [samples].
    """

    source: str
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]


def make_part(source: str, inputs: npt.NDArray[Any], targets: npt.NDArray[Any], channels_last: bool = False) -> Part:
    """Return samples in the form of Atoll's data sets.

    Inputs of uint8 are pixels: they stay bytes, and grey images [n, height, width] gain a channel axis. All other
    inputs become float32. Integer targets become int64 class numbers, others float32.

    Args:
        source: where they come from, for errors.
        inputs: [n, *shape].
        targets: [n].
        channels_last: images are [n, height, width, channels], and become [n, channels, height, width].
    """
    for name, array in (("inputs", inputs), ("targets", targets)):
        if array.dtype.kind not in "biuf":
            raise InputError(f"{source}: its {name} have the type {array.dtype}; they must be numbers")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{source}: its {name} must be finite numbers")
    if not inputs.ndim or not len(inputs):
        raise InputError(f"{source}: holds no samples; every client needs at least one")
    if targets.ndim != 1 or len(targets) != len(inputs):
        raise InputError(
            f"{source}: its targets have the shape {list(targets.shape)}; there must be one for each of its "
            f"{len(inputs)} inputs"
        )
    if channels_last and inputs.ndim == 4:
        inputs = np.moveaxis(inputs, 3, 1)
    if targets.dtype == np.uint64 and targets.max() >= 2**63:
        raise InputError(f"{source}: has the label {targets.max()}, which is too large")
    if inputs.dtype != np.uint8:
        with np.errstate(over="ignore"):
            inputs = inputs.astype(np.float32)
        if not np.isfinite(inputs).all():
            raise InputError(f"{source}: its inputs are too large for 32-bit numbers")
    elif inputs.ndim == 3:
        inputs = inputs[:, None]
    kind = np.float32 if targets.dtype.kind == "f" else np.int64
    return Part(source, np.ascontiguousarray(inputs), targets.astype(kind))


def join(
    name: str,
    clients: Sequence[Part],
    tests: Sequence[Part | None] = (),
    common_test: Part | None = None,
    classes: int | None = None,
    scale: float | None = None,
    test_every: int = 5,
) -> Dataset:
    """Return one data set of all clients' samples, with each sample's client in `owners`.

    Args:
        clients: the training samples, one part per client.
        tests: each client's own test samples, if it has any.
        common_test: one test set for all.
        classes: number of classes; None: one more than the largest label; real targets have none.
        scale: factor applied to input values; None: 1/255 for pixels, else 1.
        test_every: without any test samples, one in this many of each client's samples is held out.
    """
    if not clients:
        raise InputError(f"{name}: there are no clients")
    owned = [(client, part) for client, part in enumerate(tests) if part is not None]
    if owned and common_test is not None:
        raise InputError(
            f"{owned[0][1].source}: clients have test samples of their own, but there is also a common test set "
            f"({common_test.source}); keep one or the other"
        )
    shared = [] if common_test is None else [common_test]
    everything = [*clients, *(part for _, part in owned), *shared]
    _require_alike(everything)
    trains, held = (clients, owned) if owned or shared else _hold_out(name, clients, test_every)
    inputs, targets = _concatenate(trains)
    test_inputs, test_targets = _concatenate([part for _, part in held] + shared)
    is_real = targets.dtype.kind == "f"
    return Dataset(
        name=name,
        inputs=inputs,
        targets=targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        classes=0 if is_real else _count_classes(everything, classes),
        scale=(PIXEL_SCALE if inputs.dtype == np.uint8 else 1.0) if scale is None else scale,
        loss="squared" if is_real else "cross-entropy",
        owners=np.repeat(np.arange(len(trains)), [len(part.targets) for part in trains]),
        test_owners=np.repeat([k for k, _ in held], [len(part.targets) for _, part in held]) if held else None,
    )


def together(parts: Sequence[Part], source: str, fault: str) -> Part:
    """Return several parts as one."""
    if len({(part.inputs.shape[1:], part.inputs.dtype, part.targets.dtype) for part in parts}) > 1:
        raise InputError(fault)
    return Part(source, *_concatenate(parts))


def _hold_out(name: str, clients: Sequence[Part], every: int) -> tuple[list[Part], list[tuple[int, Part]]]:
    """Return each client's training samples, and what is held out from those with at least `every` samples."""
    if every < 2:
        raise InputError(f"test_every = {every}: must be at least 2")
    trains, tests = [], []
    for client, part in enumerate(clients):
        is_test = np.arange(len(part.targets)) % every == every - 1
        trains.append(Part(part.source, part.inputs[~is_test], part.targets[~is_test]))
        if is_test.any():
            tests.append((client, Part(part.source, part.inputs[is_test], part.targets[is_test])))
    if not tests:
        raise InputError(f"{name}: there is no test set, and no client has {every} samples, of which to hold one out")
    return trains, tests


def _require_alike(parts: Sequence[Part]) -> None:
    """Refuse parts whose inputs or targets differ from the first part's in shape or type."""
    first = parts[0]
    for part in parts[1:]:
        own, theirs = list(part.inputs.shape[1:]), list(first.inputs.shape[1:])
        if own != theirs:
            raise InputError(f"{part.source}: its inputs have the shape {own}, those of {first.source} {theirs}")
        for name in ("inputs", "targets"):
            kind, other = getattr(part, name).dtype, getattr(first, name).dtype
            if kind != other:
                raise InputError(f"{part.source}: its {name} have the type {kind}, those of {first.source} {other}")


def _concatenate(parts: Sequence[Part]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return np.concatenate([part.inputs for part in parts]), np.concatenate([part.targets for part in parts])


def _count_classes(parts: Sequence[Part], classes: int | None) -> int:
    """Return the number of classes, after checking that all labels are below it."""
    if classes is not None and classes < 1:
        raise InputError(f"classes = {classes}: must be at least 1; real targets need none")
    count = classes or 1 + max(int(part.targets.max()) for part in parts)
    if classes is None and count > MOST_CLASSES:
        source = next(part.source for part in parts if int(part.targets.max()) >= MOST_CLASSES)
        raise InputError(f"{source}: its labels make {count} classes; there may be at most {MOST_CLASSES}")
    for part in parts:
        low, high = int(part.targets.min()), int(part.targets.max())
        if low < 0 or high >= count:
            raise InputError(
                f"{part.source}: has the label {low if low < 0 else high}; labels must be from 0 to {count - 1}"
            )
    return count
