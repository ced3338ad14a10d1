"""Checks the arguments of clustering rules called from a script like those of an experiment file."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from atoll.support.limits import Positive
from atoll.support.requiring import check_arguments

P = ParamSpec("P")
R = TypeVar("R")

_OBJECTS = ("population", "network", "problem", "clock", "rng")
_TYPES = {"clusters": Positive}


def checked_rule(rule: Callable[P, R]) -> Callable[P, R]:
    """Return the clustering rule with its arguments checked first; it raises an `InputError` if one is wrong."""
    return check_arguments(rule, lambda name: name if name in _OBJECTS else f"clustering.{name}", _TYPES)
