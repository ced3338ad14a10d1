"""Optional packages, which Atoll's extras install."""

from importlib import import_module
from typing import Any

from atoll.support.errors import InputError


def load_extra(module: str, extra: str, told: str, package: str = "") -> Any:
    """Import and return a module of an optional package.

    Args:
        module: the module's name.
        extra: the extra of Atoll that installs it.
        told: what needs it: the subject of the error's sentence.
        package: the package's name, if it differs from the module's.

    Raises:
        InputError: if it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{told} needs {package or module}; run pip install 'atoll[{extra}]'") from error
