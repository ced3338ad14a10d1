"""What a run's folder tells of where it ran."""

import platform
import subprocess
from inspect import unwrap
from pathlib import Path

import pytest
import torch

from atoll.support import environment
from atoll.support.environment import describe_environment


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *words], check=True)


def test_a_revision_is_dirty_if_files_other_than_kept_runs_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept run that was removed, to have it run again, does not keep the new one from being kept."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(environment, "_git_revision", unwrap(environment._git_revision))  # see conftest.py
    monkeypatch.chdir(tmp_path)
    assert describe_environment(0)["git"] is None
    git("init", "--quiet")
    for name in ("code", "src/code", "evidence/run"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("1")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    commit = describe_environment(0)["git"]
    assert 7 <= len(commit) <= 40
    Path("unknown").touch()
    Path("evidence/run").unlink()
    assert describe_environment(0)["git"] == commit
    monkeypatch.chdir("src")
    assert describe_environment(0)["git"] == commit
    Path("../code").write_text("2")
    assert describe_environment(0)["git"] == f"{commit}-dirty"
    Path("../.git/index").write_text("damaged")  # git still tells the commit, but no longer what has changed
    assert describe_environment(0)["git"] is None


def test_a_run_names_the_instructions_that_its_bits_depend_on() -> None:
    architecture, instructions = describe_environment(0)["machine"]["processor"].split(", ")
    assert architecture == platform.machine()
    assert instructions == torch.backends.cpu.get_cpu_capability()
