"""Objects as plain values, so that two machines can compare them."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType
from typing import Any

from atoll.support.errors import InputError


def plain(value: Any, told: str) -> Any:
    """Return a value in JSON types: functions as names and captured values, dataclasses as fields; `told` names it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(each, told) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, told) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(each, told) for each in value)
    if isinstance(value, partial):
        return [plain(part, told) for part in (value.func, value.args, value.keywords)]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name), told) for each in fields(value)}
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        given = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [_name(value), *(plain(each, told) for each in (*held, *given))]
    if isinstance(value, type) or callable(value):
        return _name(value)
    raise InputError(
        f"{told} holds a {type(value).__name__}, which server and nodes cannot compare; use only numbers, strings "
        "and functions"
    )


def _name(value: Any) -> str:
    """Return the qualified name of a function or class."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
