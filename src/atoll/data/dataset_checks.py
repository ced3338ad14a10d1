"""A data set's parts, converted and checked against each other."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from atoll.data.array_inputs import Array, as_array, as_whole, kind_of
from atoll.support.errors import InputError
from atoll.support.limits import Count, Number
from atoll.support.requiring import require
from atoll.support.wording import natural, show

LOSSES = ("cross-entropy", "squared", "binary-cross-entropy", "next-token")
POOLS = ("", "test_")
_MOST_TURNS = 4


def checked_parts(data: Any) -> Mapping[str, Any]:
    """Return a data set's fields as it keeps them: NumPy arrays, int64 labels, Python numbers."""
    require("name", data.name, str)
    parts = {"classes": require("classes", data.classes, Count), "scale": _scale(data.scale), "turns": _turns(data)}
    _require_loss(data.loss, parts["classes"])
    read = as_whole if parts["classes"] else as_array
    targets = {pool: getattr(data, f"{pool}targets") for pool in POOLS}
    if parts["classes"] and (names := _names_of(targets)):
        targets = {pool: _numbered(f"{pool}targets", given, names) for pool, given in targets.items()}
        parts |= {"names": {**data.names, "targets": names}}
    for pool in POOLS:
        parts |= {f"{pool}inputs": as_array(f"{pool}inputs", getattr(data, f"{pool}inputs"))}
        parts |= {f"{pool}targets": read(f"{pool}targets", targets[pool])}
        _require_pairs(pool, parts[f"{pool}inputs"], parts[f"{pool}targets"], len(parts["turns"]))
    columns = [getattr(given, "columns", ()) for given in (data.inputs, data.test_inputs)]  # those of data frames
    if odd := [(own, other) for own, other in zip(*columns, strict=False) if isinstance(own, str) and own != other]:
        raise InputError(f"test_inputs: has the column {odd[0][1]!r} where inputs has {odd[0][0]!r}; order both alike")
    shape, test_shape = parts["inputs"].shape[1:], parts["test_inputs"].shape[1:]
    if shape != test_shape:
        raise InputError(f"test_inputs: samples must have the shape of inputs, {list(shape)}, not {list(test_shape)}")
    for pool in POOLS:
        if parts["classes"]:
            _require_labels(f"{pool}targets", parts[f"{pool}targets"], parts["classes"])
        if data.loss == "binary-cross-entropy":
            parts |= {f"{pool}targets": _as_labels(f"{pool}targets", parts[f"{pool}targets"])}
        if data.loss == "next-token" and not _are_texts(parts[f"{pool}inputs"], parts[f"{pool}targets"]):
            raise InputError(f"{pool}targets must be {pool}inputs, tokens [samples, length], with loss = 'next-token'")
        parts |= _numbers_of_samples(data, pool, len(parts[f"{pool}inputs"]), len(parts["turns"]))
    return parts


def _as_labels(name: str, targets: Array) -> Array:
    """Return labels that each apply or not as float32, [samples, labels], of any numeric type."""
    if not np.isin(targets, (0, 1)).all():
        raise InputError(f"{name} must be 0 or 1 with loss = 'binary-cross-entropy'")
    return targets.astype(np.float32, copy=False).reshape(len(targets), -1)


def _names_of(targets: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes' names in natural order if the training targets are texts; else nothing."""
    given = targets[""]
    values = list(given) if hasattr(given, "__iter__") and not hasattr(given, "detach") else []
    return tuple(sorted(set(values), key=natural)) if values and all(isinstance(each, str) for each in values) else ()


def _numbered(name: str, given: Any, names: tuple[str, ...]) -> Array:
    """Return the class numbers of texts."""
    numbers = {text: number for number, text in enumerate(names)}
    if odd := [text for text in given if text not in numbers]:
        raise InputError(f"{name}: {show(str(odd[0]))} is not among the classes of targets, {', '.join(names[:20])}")
    return np.array([numbers[text] for text in given], np.int64)


def _scale(scale: Any) -> float:
    if not (found := require("scale", scale, Number)):
        raise InputError("scale = 0: must be a finite number other than 0; it multiplies all inputs")
    return float(found)


def _turns(data: Any) -> tuple[int, ...]:
    turns = tuple(as_whole("turns", data.turns).tolist())
    if not turns or not all(0 <= turn < _MOST_TURNS for turn in turns):
        raise InputError(f"turns = {data.turns}: must be numbers of quarter turns, each from 0 to {_MOST_TURNS - 1}")
    return turns


def _require_loss(loss: Any, classes: int) -> None:
    if loss not in LOSSES:
        raise InputError(f"loss must be {' or '.join(map(repr, LOSSES))}, not {loss!r}")
    if (loss == "cross-entropy") != (classes > 0):
        raise InputError(f"classes = {classes} with loss = {loss!r}: cross-entropy needs classes, the others have 0")


def _require_pairs(pool: str, inputs: Array, targets: Array, copies: int) -> None:
    """Refuse a pool without samples, or without one target for each, or for each of their copies."""
    for name, array in (("inputs", inputs), ("targets", targets)):
        if not array.ndim or not len(array):
            raise InputError(f"{pool}{name} must be an array of numbers with at least one sample, not {kind_of(array)}")
    if len(targets) not in (len(inputs), len(inputs) * copies):
        raise InputError(f"{pool}inputs has {len(inputs)} samples, but {pool}targets has {len(targets)}")


def _require_labels(name: str, labels: Array, classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(f"{name} must be from 0 to classes - 1 = {classes - 1}, but range from {low} to {high}")


def _are_texts(inputs: Array, targets: Array) -> bool:
    """Return whether targets are the inputs, and each has a token to predict."""
    whole = inputs.ndim == targets.ndim == 2 and inputs.dtype.kind == targets.dtype.kind == "i"
    return whole and np.array_equal(inputs, targets) and bool((targets[:, :2] >= 0).all())


def _numbers_of_samples(data: Any, pool: str, samples: int, turns: int) -> dict[str, Array]:
    """Return a pool's groups and owners, if it has any, one number per sample."""
    found = {}
    for name, wanted in ((f"{pool}groups", samples * turns), (f"{pool}owners", samples)):
        if (given := getattr(data, name)) is None:
            continue
        numbers = as_whole(name, given)
        if len(numbers) != wanted or (wanted and int(np.min(numbers)) < 0):
            raise InputError(f"{name}: must hold {wanted} numbers of at least 0, one a sample, not {kind_of(numbers)}")
        found[name] = numbers
    return found
