"""Where a run took place: versions, machine, git revision."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

FORMAT = 1

BITS_DEPEND_ON = ("atoll", "torch", "numpy")
"""Packages whose version may change the last bit of a result."""

EVIDENCE = Path("evidence")
"""Where a repository keeps finished runs, which do not change what a run computes."""


def describe_environment(seed: int) -> dict[str, Any]:
    """Return versions, machine, seed and git revision of this run."""
    import torch

    processor = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {
        "format": FORMAT,
        "seed": seed,
        "python": sys.version.split()[0],
        "packages": package_versions(),
        "machine": {"system": platform.platform(), "processor": processor, "cpus": os.cpu_count()},
        "git": _git_revision(),
    }


@cache
def package_versions() -> dict[str, str | None]:
    """Return the versions of Atoll and of the packages that results depend on."""
    return {name: _version(name) for name in ("atoll", "torch", "numpy", "scipy", "scikit-learn", "pydantic")}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """Return the commit, with ``-dirty`` if files outside the kept runs have changed; None if git cannot tell."""
    revision = _git("describe", "--always")
    changed = revision and _git("status", "--porcelain", "--untracked-files=no", ":/", f":(top,exclude){EVIDENCE}")
    return None if changed is None else f"{revision}-dirty" if changed else revision


def _git(*words: str) -> str | None:
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
