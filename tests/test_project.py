"""The project's own files agree with each other: the lock, the versions, what is packaged."""

import importlib.metadata
import importlib.resources
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def lock_lines() -> list[str]:
    """The lock's requirements, without comments."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / "requirements.lock").read_text().splitlines())
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def test_every_line_of_the_lock_is_a_plain_pin(lock_lines: list[str]) -> None:
    """No index, path, address, hash, marker or build suffix, so that any machine can install it."""
    odd = [line for line in lock_lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)]
    assert odd == []


def test_the_lock_leaves_the_torch_build_to_the_machine(lock_lines: list[str]) -> None:
    assert "torch==2.13.0" in lock_lines
    assert [line for line in lock_lines if re.match(r"nvidia-|cuda-|triton", line)] == []


def test_every_dependency_is_pinned(lock_lines: list[str], project: dict[str, Any]) -> None:
    pinned = {line.partition("==")[0] for line in lock_lines}
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {canonical(re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]) for requirement in wanted}
    assert names - pinned == set()


def test_versions_agree(project: dict[str, Any]) -> None:
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert citation is not None
    assert importlib.metadata.version("atoll") == project["version"] == citation[1].strip("\"' ")


def test_ci_run_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_recipes_and_type_marker_are_packaged() -> None:
    package = importlib.resources.files("atoll")
    assert (package / "py.typed").is_file()
    assert [file.name for file in (package / "recipes").iterdir() if file.name.endswith(".toml")]
