"""`atoll new`: what it writes runs, and passes its own test."""

import subprocess
import sys
from pathlib import Path

import pytest

from atoll.settings.choices import CHOICES
from atoll.settings.experiment_file import read_experiment
from tests.cli.conftest import Command


@pytest.mark.more
def test_what_it_writes_runs_and_passes_its_test(process: Command, folder: Path) -> None:
    process("new", "mine").succeeded()
    assert sorted(path.name for path in (folder / "mine").iterdir()) == ["experiment.toml", "own.py", "test_own.py"]
    printed = process("run", "mine/experiment.toml", "--quiet").succeeded()
    assert "Figures and table: runs/own/report" in printed
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    assert "4 passed" in done.stdout, done.stdout


def test_it_has_one_function_of_each_kind(atoll: Command, folder: Path) -> None:
    atoll("new", "mine").succeeded()
    table, text = read_experiment("mine/experiment.toml"), (folder / "mine/own.py").read_text()
    named = {
        (section, key): name
        for layer in (table, *table["runs"])
        for section, held in layer.items()
        if isinstance(held, dict)
        for key, value in held.items()
        for name in (value if isinstance(value, list) else [value])
        if str(name).startswith("own:") and key != "probes"
    }
    others = {("privacy", "trust"), ("drift", "kind"), ("method", "encoder")}  # none of one's own; a page; one method
    assert set(named) == {(choice.section, choice.key) for choice in CHOICES} - others
    assert all(f"def {value.partition(':')[2]}(" in text for value in named.values())
    assert "def norm(" in text


def test_what_is_there_is_left_alone(atoll: Command, folder: Path) -> None:
    assert "is a file" in atoll("new", "tiny.toml").refused()
    assert "is not empty" in atoll("new", ".").refused()
    assert "or lies below one (tiny.toml)" in atoll("new", "tiny.toml/below").refused()
    assert [path.name for path in folder.iterdir()] == ["tiny.toml"]
