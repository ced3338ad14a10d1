"""A partition's arguments when a script calls it, checked with the same messages as settings."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from atoll.data.array_inputs import as_array, kind_of
from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.requiring import check_arguments

P = ParamSpec("P")
R = TypeVar("R")

_POOL = ("labels", "groups", "owners")  # one number for each sample
_TYPES = {"clients": Positive, "classes": Positive} | dict.fromkeys(_POOL, Any)


def checked_rule(rule: Callable[P, R]) -> Callable[P, R]:
    """Return the partition rule with its arguments checked first; labels, groups and owners may be lists or tensors."""
    return check_arguments(rule, _path, _TYPES, _read_pool)


def _path(name: str) -> str:
    return name if name in (*_POOL, "rng") else "data.dataset: classes" if name == "classes" else f"data.{name}"


def _read_pool(given: dict[str, Any]) -> None:
    """Convert what a script passes about the pool to arrays."""
    for name in _POOL:
        if name not in given or (name == "owners" and given[name] is None):  # owners may be unknown
            continue
        given[name] = numbers = as_array(name, given[name])
        if numbers.ndim != 1 or not len(numbers):
            raise InputError(f"{name}: must be flat, one number for each sample of the pool, not {kind_of(numbers)}")
        if name == "labels" and "classes" not in given:
            continue
        classes = given["classes"] if name == "labels" else None
        if numbers.dtype.kind == "f" or numbers.min() < 0 or numbers.max() >= (np.inf if classes is None else classes):
            below = "" if classes is None else f", below classes = {classes}"
            found = f"{numbers.dtype} from {numbers.min():g} to {numbers.max():g}"
            raise InputError(f"{name}: must be whole numbers from 0{below}; they are {found}")
