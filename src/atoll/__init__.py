"""Atoll: clustered and hierarchical federated learning, one engine, schedules known before training.

Most scripts need only the names below. Each is imported on first use, which keeps ``import atoll`` fast. Whatever an
experiment file names is a function here too: a method such as `fedcluster`, a robust rule such as `krum`, and, in
modules of their own, `partitions`, `clusterings`, `topologies`, `models`, `optimizers` and `attacks`.
"""

from importlib import import_module
from pkgutil import get_data
from typing import Any

# The stub holds each public name once, as in SPEC 1: ``from MODULE import NAME as NAME``, or ``PUBLIC = NAME``.
_STUB = [line.split() for line in (get_data(__name__, "__init__.pyi") or b"").decode().splitlines()]
_MODULES = {words[3]: words[1] for words in _STUB if words[:1] == ["from"]}
_HOMES = {words[3]: words[3] for words in _STUB if words[4:5] == ["as"]}
_HOMES |= {words[0]: words[2] for words in _STUB if words[1:2] == ["="]}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        value: Any = import_module("importlib.metadata").version("atoll")
    elif name in _HOMES:
        own = _HOMES[name]
        value = getattr(__import__(_MODULES[own], fromlist=[own]), own)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
