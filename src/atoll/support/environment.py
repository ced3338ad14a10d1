"""Where a run took place: versions, machine, git revision."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from typing import Any

FORMAT = 1

BITS_DEPEND_ON = ("atoll", "torch", "numpy")
"""Packages whose version may change the last bit of a result."""


def describe_environment(seed: int) -> dict[str, Any]:
    """Return versions, machine, seed and git revision of this run."""
    return {
        "format": FORMAT,
        "seed": seed,
        "python": sys.version.split()[0],
        "packages": package_versions(),
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cpus": os.cpu_count()},
        "git": _git_revision(),
    }


@cache
def package_versions() -> dict[str, str | None]:
    """Return the versions of Atoll and of the packages that results depend on."""
    names = ("atoll", "torch", "numpy", "scipy", "scikit-learn", "pydantic")
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    try:
        result = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
