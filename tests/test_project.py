"""The project's own files agree with each other: the locks, the versions, what is packaged."""

import importlib.metadata
import importlib.resources
import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tiers import thinned

ROOT = Path(__file__).parents[1]


LOCKS = ("requirements.lock", "requirements-dev.lock")  # what users need; and all that the tests need
MADE_ON = {
    "python_version": "3.11",
    "python_full_version": "3.11.4",
    "sys_platform": "linux",
    "platform_system": "Linux",
}
NOT_PINNED = re.compile("(nvidia-|cuda-|triton).*|pip")  # the machine's: CUDA builds of torch, and what installs


def pins(lock: str) -> dict[str, str]:
    """Return a lock's packages and their versions."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / lock).read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return table


def needed_by(requirement: Requirement) -> list[Requirement]:
    """Return what a package asks for in its turn where the locks are made, as what is installed here says."""
    where = [{**MADE_ON, "extra": extra} for extra in ("", *requirement.extras)]
    asked = asked_by(canonicalize_name(requirement.name))
    return [each for each in asked if each.marker is None or any(map(each.marker.evaluate, where))]


@cache
def asked_by(name: str) -> list[Requirement]:
    """Return all that a package may ask for, wherever and with whatever extras."""
    return [Requirement(text) for text in importlib.metadata.requires(name) or ()]


def wanted(project: dict[str, Any], lock: str) -> list[Requirement]:
    """Return what pyproject.toml says that must be in a lock."""
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    asked += project["project"]["optional-dependencies"]["dev"] if "dev" in lock else []
    return [Requirement(text) for text in asked]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_is_a_plain_pin(lock: str) -> None:
    """No index, path, address, hash, marker or build suffix, so that any machine can install it."""
    odd = [
        f"{name}=={pin}"
        for name, pin in pins(lock).items()
        if not re.fullmatch(r"[a-z0-9-]+==\d[\da-z.]*", f"{name}=={pin}")
    ]
    assert odd == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_leaves_the_torch_build_to_the_machine(lock: str) -> None:
    assert pins(lock)["torch"] == "2.13.0"
    assert [name for name in pins(lock) if NOT_PINNED.fullmatch(name)] == []


@pytest.mark.parametrize("lock", thinned(LOCKS, ["requirements.lock"]))
def test_a_lock_has_what_pyproject_asks_for_all_that_needs_and_nothing_else(project: dict[str, Any], lock: str) -> None:
    """Whoever changes pyproject.toml, or a lock by hand, has to run `make lock`."""
    pinned = pins(lock)
    needed: dict[str, str] = {}
    todo = wanted(project, lock)
    while todo:
        name = canonicalize_name((one := todo.pop()).name)
        assert name in pinned, f"{one} is not in {lock}"
        assert one.specifier.contains(pinned[name], prereleases=True), f"{one}, but {lock} has {pinned[name]}"
        if str(one) not in needed:
            needed[str(one)] = name
            todo += [each for each in needed_by(one) if not NOT_PINNED.fullmatch(each.name)]
    assert set(pinned) - set(needed.values()) == set(), f"nothing asks for these in {lock}"


def test_users_get_the_versions_that_the_tests_run_with() -> None:
    small, large = map(pins, LOCKS)
    assert {name: pin for name, pin in small.items() if large.get(name) != pin} == {}
    assert len(small) < len(large) / 2, "what users do not need belongs into the extra dev alone"


def test_versions_agree(project: dict[str, Any]) -> None:
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert citation is not None
    assert importlib.metadata.version("atoll") == project["project"]["version"] == citation[1].strip("\"' ")


def test_ci_run_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_recipes_and_type_marker_are_packaged() -> None:
    package = importlib.resources.files("atoll")
    assert (package / "py.typed").is_file()
    assert [file.name for file in (package / "recipes").iterdir() if file.name.endswith(".toml")]
