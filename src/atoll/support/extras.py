"""Optional packages, which Atoll's extras name."""

import re
from importlib import import_module, metadata
from typing import Any

from atoll.support.errors import InputError

_OF_EXTRA = re.compile(r"""(?P<package>[^;]+?)\s*;\s*extra == ['"](?P<extra>[\w-]+)['"]""")


def load_extra(module: str, extra: str, told: str, package: str = "") -> Any:
    """Import and return a module of an optional package.

    Args:
        extra: the extra of Atoll that names it.
        told: what needs it: the subject of the error's sentence.
        package: the package's name, if it differs from the module's.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{told} needs {package or module}; run {pip_install(extra)}") from error


def require_version(package: str, extra: str, told: str) -> None:
    """Check that an extra allows a package's version, where Atoll relies on more than its documented names."""
    from packaging.requirements import Requirement

    found = metadata.version(package)
    for each in map(Requirement, metadata.requires("atoll") or ()):
        is_named = each.name == package and each.marker is not None and each.marker.evaluate({"extra": extra})
        if is_named and not each.specifier.contains(found, prereleases=True):
            raise InputError(f"{told} needs {package}{each.specifier}, not {found}; run {pip_install(extra)}")


def pip_install(extra: str) -> str:
    """Return the command that installs an extra's packages, by their own names: Atoll itself is on no index."""
    named = filter(None, map(_OF_EXTRA.fullmatch, metadata.requires("atoll") or ()))
    return " ".join(["pip install", *(f"'{each['package']}'" for each in named if each["extra"] == extra)])
