"""Packages that only some parts of Atoll need, and its extras bring."""

from importlib import import_module
from typing import Any

from atoll.support.errors import InputError


def load_extra(module: str, extra: str, told: str, package: str = "") -> Any:
    """Return a package's module.

    Args:
        module: which.
        extra: Atoll's extra that brings it.
        told: what needs it, as a sentence begins.
        package: what it is called, if not as the module.

    Raises:
        InputError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{told} needs {package or module}; run pip install 'atoll[{extra}]'") from error
