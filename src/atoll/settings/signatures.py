"""A function's parameters as settings: types and limits from its annotations, descriptions from its docstring."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, get_origin

from pydantic import Strict

Function = Callable[..., Any]

REQUIRED = inspect.Parameter.empty
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, eq=False)
class Parameter:
    """A setting that a function takes.

    Attributes:
        name: its key.
        annotation: its type with its limits; `Any` if the function states none.
        default: `REQUIRED` if there is none.
        description: from the docstring's ``Args:`` (or ``Attributes:``), or empty.
    """

    name: str
    annotation: Any
    default: Any
    description: str


def parameters_of(function: Function) -> dict[str, inspect.Parameter]:
    """Return a function's parameters that can be passed by name.

    Raises:
        ValueError: if they cannot be read, as with some functions written in C.
    """
    return {name: each for name, each in _signature(function).parameters.items() if each.kind in _NAMED}


def takes_any(function: Function) -> bool:
    """Return whether a function has ``**parameters``."""
    return any(each.kind is each.VAR_KEYWORD for each in _known_parameters(function).values())


def asks_for(function: Function, name: str) -> bool:
    """Return whether a function has a parameter of this name; what no function asks for is not built."""
    return name in _known_parameters(function)


@lru_cache(maxsize=256)
def settings_of(function: Function, given: frozenset[str]) -> Sequence[Parameter]:
    """Return the settings that a function takes: its parameters, except those that Atoll fills in (`given`)."""
    told = _descriptions(function)
    return [
        Parameter(name, _from_list(_evaluate(each.annotation, function)), each.default, told.get(name, ""))
        for name, each in _known_parameters(function).items()
        if each.kind in _NAMED and name not in given and not name.startswith("_") and _is_plain(each.default)
    ]


def _from_list(annotation: Any) -> Any:
    """Return a tuple's type as one that takes a list too, since TOML has no tuples."""
    return Annotated[annotation, Strict(False)] if get_origin(annotation) is tuple else annotation


def _is_plain(default: Any) -> bool:
    """Return whether an experiment file could hold this value; a parameter with another default is not a setting."""
    return default is REQUIRED or default is None or isinstance(default, str | int | float | list | tuple | dict)


def _known_parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters; none if they cannot be read, which `bind` refuses, and says so."""
    try:
        return _signature(function).parameters
    except ValueError:
        return {}


@lru_cache(maxsize=256)
def _signature(function: Function) -> inspect.Signature:
    return inspect.signature(function)


def _evaluate(annotation: Any, function: Function) -> Any:
    """Return an annotation as a type; `Any` if it is missing, or a text that only type checkers can resolve."""
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    plain = inspect.unwrap(getattr(function, "__init__", function) if isinstance(function, type) else function)
    names = getattr(plain, "__globals__", None) or vars(sys.modules.get(plain.__module__, object))
    try:
        return eval(annotation, dict(names))  # source of the function, which has been imported anyway
    except Exception:
        return Any


def _descriptions(function: Function) -> dict[str, str]:
    """Return the descriptions in a docstring's ``Args:`` or ``Attributes:`` by name, each as one line."""
    text = inspect.getdoc(function) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)*)", text, re.MULTILINE)
    if section is None:
        return {}
    entries = re.split(r"^(\w+): ", inspect.cleandoc("\n" + section[1]), flags=re.MULTILINE)[1:]
    return {
        name: " ".join(said.split()).removesuffix(".") for name, said in zip(entries[::2], entries[1::2], strict=True)
    }
