"""Checks of values given by a script, with the types and the error messages of settings."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from atoll.support.errors import InputError
from atoll.support.wording import allowed, show, unknown

P = ParamSpec("P")
R = TypeVar("R")

Check = Callable[[str, Any], None]

_PLAIN = (bool, int, float, str, list, tuple, dict)  # checked by pydantic; others by their class


def plain(value: Any) -> Any:
    """Return a value as an experiment file could hold it: arrays, tensors, columns, tuples and paths converted."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):  # NumPy's, PyTorch's and pandas'
        return value.tolist()
    return str(value) if isinstance(value, PurePath) else value


def require_made(*_: object) -> None:
    """Take objects that are made lazily, so that errors in their input are raised now."""


def require(name: str, value: Any, annotation: Any) -> Any:
    """Return the value if it has this type and is within its limits; NumPy's numbers become Python's."""
    value = value.item() if isinstance(value, np.generic) else value
    checker_of(annotation)(name, value)
    return value


def require_fields(made: Any, prefix: str = "") -> None:
    """Check a dataclass's fields against their types; NumPy's numbers become Python's."""
    kind: Any = type(made)
    for name, annotation in _annotations(kind).items():
        value = require(f"{prefix}{name}", getattr(made, name), annotation)
        object.__setattr__(made, name, value)


def check_arguments(
    make: Callable[P, R],
    path: Callable[[str], str],
    types: Mapping[str, Any],
    also: Callable[[dict[str, Any]], None] | None = None,
) -> Callable[P, R]:
    """Return a function that checks its arguments against their types before it runs.

    Args:
        path: returns the name of an argument in error messages.
        types: stricter types than the annotations, by argument; `Any` allows everything.
        also: called with all arguments by name; raises an `InputError` or replaces some of them.
    """
    signature = inspect.signature(make)
    is_open = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    asked = {name: types.get(name, each.annotation) for name, each in signature.parameters.items()}

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not is_open and (odd := next((name for name in kwargs if name not in signature.parameters), None)):
            raise InputError(f"{getattr(make, '__name__', make)}: {odd} is {unknown(odd, signature.parameters)}")
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if asked[name] is not inspect.Parameter.empty:
                bound.arguments[name] = require(path(name), value, asked[name])
        if also is not None:
            also(bound.arguments)
        return make(*bound.args, **bound.kwargs)

    return call


def checked(path: str, **types: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks arguments first; `path`, such as ``method.{}``, names them in error messages."""
    return lambda make: check_arguments(make, path.format, types)


def require_has(name: str, value: Any, attribute: str, what: str) -> None:
    """Refuse an object without this attribute; users' own classes pass, too."""
    if not hasattr(value, attribute):
        raise InputError(f"{name}: must be {what}, it is {type(value).__name__!r}")


def require_path(name: str, value: Any) -> Path:
    """Return a path given by a script as a `Path`."""
    if not isinstance(value, str | PurePath):
        raise InputError(f"{name} = {show(value)}: must be a path")
    return Path(value)


def checker_of(annotation: Any) -> Check:
    """Return what raises an `InputError` unless a value is of this type; nothing is asked of types that cannot tell."""
    try:
        hash(annotation)
    except TypeError:
        return _any
    return _checker_of(annotation)


@cache
def _checker_of(annotation: Any) -> Check:
    classes: tuple[Any, ...] = get_args(annotation) or (annotation,)
    if annotation is Any or not all(isinstance(each, type) for each in classes if each is not None):
        return _by_type(annotation) if annotation is not Any else _any
    if any(issubclass(each, _PLAIN) for each in classes if each is not NoneType):
        return _by_type(annotation)
    return _by_class(tuple(classes))


def _by_class(classes: tuple[type, ...]) -> Check:
    named = " or ".join(each.__name__ for each in classes if each is not NoneType)

    def check(name: str, value: Any) -> None:
        if not isinstance(value, classes):
            raise InputError(f"{name}: must be of the class {named}, it is {type(value).__name__!r}")

    return check


def _by_type(annotation: Any) -> Check:
    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
        told = allowed(adapter.json_schema())
    except Exception:  # pydantic has no schema for it
        return _any

    def check(name: str, value: Any) -> None:
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            raise InputError(f"{name} = {show(value)}: must be {told}") from error

    return check


def _any(name: str, value: Any) -> None:
    """Accept anything."""


@cache
def _annotations(made: Any) -> dict[str, Any]:
    return {name: each for name, each in inspect.get_annotations(made).items() if not isinstance(each, str)}
