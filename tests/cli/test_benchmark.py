"""`atoll benchmark` as its page describes it, with a method of one's own; and refusals."""

import json
import os
from pathlib import Path

import pytest

from atoll.reproduce import recipe_runs
from atoll.support.errors import RunError
from atoll.support.lock import LOCK, claimed
from tests.cli.conftest import Command
from tests.cli.pages import ROOT, blocks, shell, write_files

PAGE = ROOT / "docs/benchmark.md"


@pytest.mark.more
def test_the_page_s_commands_put_a_method_of_one_s_own_on_the_page(tmp_path: Path) -> None:
    """Carried out as printed; the second command has only its own method to run."""
    assert write_files(PAGE, tmp_path) == ["mine.py"]
    first, second = (block.text for block in blocks(PAGE, "sh"))
    shell(first, tmp_path)
    before = {file: file.read_bytes() for file in (tmp_path / "benchmark/regression-tiny").iterdir()}
    shell(second, tmp_path)
    assert {file: file.read_bytes() for file in before} == before
    own = json.loads((tmp_path / "benchmark/regression-tiny/mine.cautious.json").read_bytes())
    assert (len(own["trials"]), len(own["runs"])) == (3, 5)
    assert "mine:cautious" in (tmp_path / "benchmark/index.html").read_text()
    assert "| mine:cautious " in (tmp_path / "benchmark/table.md").read_text()
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "\n")
    shell(f"{{ {second.strip()}; }} 2> told.txt || true", tmp_path)
    told = (tmp_path / "told.txt").read_text()
    assert "--methods mine:cautious: its file has changed since its results on regression-tiny were made" in told


@pytest.mark.more
def test_results_elsewhere_count_as_done_and_tables_are_made_without_running(atoll: Command) -> None:
    words = ("benchmark", "regression", "--methods", "fedavg", "--scale", "tiny", "--trials", "1", "--seeds", "1")
    atoll(*words, "--out", "there").succeeded()
    found = json.loads(atoll(*words, "--out", "here", "--results", "there", "--json").succeeded())
    assert not Path("here/work").exists()
    (own,) = found["suites"]["regression-tiny"]
    assert (own["method"], len(own["scores"]), found["failed"]) == ("fedavg", 1, [])
    again = atoll(*words[:2], "--scale", "tiny", "--out", "there", "--no-run", "--budget", "bytes")
    assert "fedavg" in again.succeeded().lower()


@pytest.mark.more
def test_a_run_that_fails_ends_the_command_with_an_error(atoll: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it leaves nothing to show; beside finished runs the tables are made all the same."""
    words = ("benchmark", "regression", "--methods", "fedavg", "--scale", "tiny", "--trials", "1", "--quiet")
    train = recipe_runs._train

    def fail(task: recipe_runs.RecipeTask) -> recipe_runs.Outcome:
        if task.title.endswith(fails):
            raise RunError("the disk is full")
        return train(task)

    monkeypatch.setattr(recipe_runs, "_train", fail)
    fails = ""
    assert "the disk is full" in atoll(*words, "--seeds", "1", "--out", "out").refused(code=1)
    fails = "seed 1"
    found = atoll(*words, "--seeds", "2", "--out", "out")
    assert found.code == 1
    assert "failed: " in found.out
    assert "the disk is full" in found.out
    assert Path("out/index.html").is_file()


def test_an_out_that_is_a_file_is_refused_before_anything_runs(atoll: Command) -> None:
    Path("taken").touch()
    told = "taken is a file, or lies below one (taken); give the path of a folder"
    assert atoll("benchmark", "regression", "--scale", "tiny", "--out", "taken").refused() == told


def test_an_out_that_holds_other_files_is_refused_before_anything_runs(tmp_path: Path, atoll: Command) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").touch()
    told = "--out mine: is not empty and holds no results; give the path of a new folder"
    assert atoll("benchmark", "regression", "--scale", "tiny", "--out", "mine").refused() == told
    (tmp_path / "mine/regression-tiny").mkdir()
    told = "--out mine: holds no results; leave out --no-run to make them"
    assert atoll("benchmark", "regression", "--scale", "tiny", "--out", "mine", "--no-run").refused() == told


def test_two_at_once_in_one_folder_are_refused(tmp_path: Path, atoll: Command) -> None:
    """Each would write a method's file with its own entries alone."""
    words = ("benchmark", "regression", "--methods", "fedavg", "--scale", "tiny", "--trials", "1", "--seeds", "1")
    with claimed(tmp_path / "out"):
        told = f"--out out: is in use by process {os.getpid()}; wait for it, stop it, or give another folder"
        assert atoll(*words, "--out", "out").refused() == told
        assert [each.name for each in Path("out").iterdir()] == [LOCK]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["chem79"], "suite 'chem79': unknown, did you mean 'chem97'?"),
        (["--methods", "fedawg"], "--methods fedawg: unknown, did you mean 'fedavg'?"),
        (["--methods", "fedavg, local, ifcb"], "--methods ifcb: unknown, did you mean 'ifca'?"),
        (["--methods", ""], "--methods '': unknown. Allowed: apfl, bcd"),
        (["--budget", "byte"], "--budget byte: unknown, did you mean 'bytes'?"),
        (["--scale", "huge"], "--scale huge: must be tiny; leave it out for the published size"),
        (["--trials", "0"], "--trials 0: must be at least 1"),
        (["--updates", "0"], "--updates 0: must be at least 1"),
        (["regression", "--updates", "3"], "--updates 3: is too few for suite regression, where a round"),
        (["--results", "nowhere"], "--results nowhere: is not a folder"),
        (["--no-run", "--methods", "ifca"], "--methods ifca: is about what is run; leave out --no-run"),
        (["--no-run", "--trials", "3"], "--trials 3: is about what is run; leave out --no-run"),
        (["--no-run", "--seeds", "5"], "--seeds 5: is about what is run; leave out --no-run"),
        (["--no-run", "--jobs", "2"], "--jobs 2: is about what is run; leave out --no-run"),
        (["--no-run"], "--out runs/benchmark: holds no results; leave out --no-run to make them"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(atoll: Command, words: list[str], told: str) -> None:
    assert atoll("benchmark", *words).refused().startswith(told)
    assert not Path("runs").exists()
