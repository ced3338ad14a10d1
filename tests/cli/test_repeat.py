"""Runs repeat to the bit: in two processes, after a kill, after an interruption; failed runs keep what is good."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TINY, Command
from tests.made_runs import timeless
from tests.tiers import thinned

LONG = (
    TINY.replace("rounds = 2", "rounds = 60")
    + "\n[run]\nexecutor = 'serial'\ncheckpoint_every = 3\nevaluate_every = 2\n"
)


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run without the wall-clock time, the one value that may differ."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [timeless(line) for line in lines]


def last_checkpoint(run: Path) -> tuple[str, bytes]:
    file = max((run / "checkpoint").glob("*.safetensors"))
    return file.name, file.read_bytes()


def begin(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a long run as a process, and return once it has written a checkpoint."""
    command = [sys.executable, "-m", "atoll", "run", "long.toml", *words]
    (folder / "long.toml").write_text(LONG)
    child = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 60
    while not list((folder / "runs" / "tiny" / "checkpoint").glob("*.json")):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until, "no checkpoint after 60 s"
        time.sleep(0.01)
    return child


@pytest.mark.more
def test_two_processes_give_equal_bits(process: Command, atoll: Command, folder: Path) -> None:
    process("run", "tiny.toml", "--out", "a").succeeded()
    atoll("run", "tiny.toml", "--out", "b").succeeded()
    assert rows(folder / "a") == rows(folder / "b")
    assert len(rows(folder / "a")) == 3
    assert last_checkpoint(folder / "a") == last_checkpoint(folder / "b")
    atoll("run", "tiny.toml", "--out", "c", "--set", "seed=1").succeeded()
    assert rows(folder / "a") != rows(folder / "c")


@pytest.mark.parametrize("how", thinned([signal.SIGKILL, signal.SIGINT, signal.SIGTERM], 1))
def test_a_stopped_run_goes_on_to_the_same_bits(atoll: Command, folder: Path, how: signal.Signals) -> None:
    child = begin(folder)
    child.send_signal(how)
    printed, told = child.communicate(timeout=60)
    run = folder / "runs" / "tiny"
    assert printed == ""
    assert not (run / "summary.json").exists(), "the run was over before it was stopped"
    if how != signal.SIGKILL:
        assert child.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[how]
        assert told == "interrupted; to resume: atoll run long.toml --resume\n"
        assert int(last_checkpoint(run)[0][6:14]) >= rows(run)[-1]["event"], "what was done is in the checkpoint"
        assert sorted(path.name for path in run.iterdir() if path.name.startswith(".")) == []
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"event": 9')  # a row that a crash tore
    atoll("run", "long.toml", "--resume").succeeded()
    atoll("run", "long.toml", "--out", "whole").succeeded()
    assert rows(run) == rows(folder / "whole")
    assert last_checkpoint(run) == last_checkpoint(folder / "whole")


def test_resume_after_the_end_changes_nothing(atoll: Command, folder: Path) -> None:
    first = atoll("run", "tiny.toml", "--json").succeeded()
    before = {path: path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file()}
    assert atoll("run", "tiny.toml", "--json", "--resume").succeeded() == first
    after = {path: path.read_bytes() for path in (folder / "runs").rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.more
def test_resume_of_several_runs_of_which_one_is_finished(atoll: Command, folder: Path) -> None:
    (folder / "two.toml").write_text(TINY + "\n[[runs]]\nlabel = 'a'\n[[runs]]\nlabel = 'b'\nmethod.name = 'fedavg'\n")
    atoll("run", "two.toml", "--out", "whole").succeeded()
    (folder / "one.toml").write_text("label = 'a'\n" + TINY)
    atoll("run", "one.toml", "--out", "half/a").succeeded()
    before = (folder / "half" / "a" / "checkpoint" / "event-00000004.json").stat().st_mtime_ns
    atoll("run", "two.toml", "--out", "half", "--resume").succeeded()
    assert (folder / "half" / "a" / "checkpoint" / "event-00000004.json").stat().st_mtime_ns == before
    for name in "ab":
        assert rows(folder / "half" / name) == rows(folder / "whole" / name)
    assert json.loads((folder / "half" / "experiment.json").read_bytes()) == {"runs": ["a", "b"]}
    assert (folder / "half" / "report" / "table.md").is_file()


def test_resume_of_damaged_folders(atoll: Command, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    atoll("run", "tiny.toml", "--set", "run.checkpoint_every=1").succeeded()
    whole = rows(run)
    (run / "summary.json").unlink()
    newest = max((run / "checkpoint").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-4] + b"oops")
    done = atoll("run", "tiny.toml", "--set", "run.checkpoint_every=1", "--resume")
    assert done.code == 0
    assert "warning: the checkpoint event-00000004 is damaged" in done.err
    assert rows(run) == whole
    (run / "summary.json").unlink()
    for file in (run / "checkpoint").glob("*.json"):
        file.write_text("{}")
    assert "every checkpoint" in atoll("run", "tiny.toml", "--set", "run.checkpoint_every=1", "--resume").refused()
    (run / "metrics.jsonl").write_text("nonsense\n")
    for file in (run / "checkpoint").iterdir():
        file.unlink()
    assert "is damaged" in atoll("run", "tiny.toml", "--set", "run.checkpoint_every=1", "--resume").refused()
    (run / "metrics.jsonl").unlink()
    assert "cannot be read" in atoll("run", "tiny.toml", "--set", "run.checkpoint_every=1", "--resume").refused()
    atoll("run", "tiny.toml", "--set", "run.checkpoint_every=1", "--overwrite").succeeded()
    assert rows(run) == whole


def test_a_finished_run_needs_no_checkpoint(atoll: Command, folder: Path) -> None:
    run = folder / "runs" / "tiny"
    first = atoll("run", "tiny.toml", "--json").succeeded()
    for file in (run / "checkpoint").iterdir():
        file.unlink()
    before = (run / "metrics.jsonl").read_bytes()
    assert atoll("run", "tiny.toml", "--json", "--resume").succeeded() == first
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("damage", ["missing", "doubled"])
def test_rows_that_are_not_those_of_the_run(atoll: Command, folder: Path, damage: str) -> None:
    run = folder / "runs" / "tiny"
    atoll("run", "tiny.toml").succeeded()
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(
        b"".join([*lines[:1], *(lines[1:2] * 2 if damage == "doubled" else []), *lines[2:]])
    )
    sentence = atoll("run", "tiny.toml", "--resume").refused()
    assert "metrics.jsonl is damaged (the row of event" in sentence
    assert "--overwrite" in sentence


def test_settings_that_may_differ_on_resume(atoll: Command, folder: Path) -> None:
    """What changes neither bits nor rows; the folder then tells the new values."""
    atoll("run", "tiny.toml", "--set", "run.executor=serial").succeeded()
    run = folder / "runs" / "tiny"
    whole, last = rows(run), last_checkpoint(run)
    (run / "summary.json").unlink()
    for file in (run / "checkpoint").iterdir():
        file.unlink()
    changes = ("run.executor=cores", "run.workers=2", "run.checkpoint_minutes=5", "label=another")
    words = [word for change in changes for word in ("--set", change)]
    atoll("run", "tiny.toml", "--resume", *words).succeeded()
    assert rows(run) == whole
    assert last_checkpoint(run) == last
    assert 'executor = "cores"' in (run / "config.toml").read_text()
    (run / "summary.json").unlink()
    sentence = atoll("run", "tiny.toml", "--resume", "--set", "run.executor=stacked").refused()
    assert "run.executor now gives the bits of 'stacked'" in sentence
    assert "set run.executor = 'serial'" in sentence


def test_every_setting_that_differs_is_told(atoll: Command) -> None:
    atoll("run", "tiny.toml").succeeded()
    changes = (
        "seed=1",
        "rounds=3",
        "local.lr=0.5",
        "local.steps=3",
        "data.samples=9",
        "run.evaluate_every=2",
        "model.name=lr",
    )
    words = [word for change in changes for word in ("--set", change)]
    sentence = atoll("run", "tiny.toml", "--resume", *words).refused()
    for told in (
        "seed was 0, is now 1",
        "rounds was 2, is now 3",
        "local.lr was 0.05, is now 0.5",
        "local.steps was 2, is now 3",
        "data.samples was 8, is now 9",
        "run.evaluate_every was 1, is now 2",
        "model.name was 'mlp', is now 'lr'",
    ):
        assert told in sentence


@pytest.mark.more
def test_a_folder_in_use(atoll: Command, folder: Path) -> None:
    child = begin(folder)
    for words in (("--resume",), ("--overwrite",)):
        sentence = atoll("run", "long.toml", *words).refused()
        assert f"is in use by process {child.pid};" in sentence
    assert child.poll() is None, "the other process goes on"
    child.kill()
    child.communicate(timeout=60)
    assert (folder / "runs/tiny/.lock").read_text() == f"{child.pid}\n"
    atoll("run", "long.toml", "--resume").succeeded()
    assert not (folder / "runs/tiny/.lock").exists()


@pytest.mark.more
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_terminals_interrupt_lets_workers_finish(atoll: Command, folder: Path, how: signal.Signals) -> None:
    """Ctrl-C, and SIGTERM from a job scheduler, go to all processes of a group at once."""
    child = begin(folder, "--set", "run.executor=cores", "--set", "run.workers=2", "--set", "rounds=200")
    os.killpg(child.pid, how)
    printed, told = child.communicate(timeout=60)
    assert (child.returncode, printed) == (128 + how, "")
    assert told.startswith("interrupted; to resume: atoll run long.toml --set run.executor=cores")
    assert len(told.splitlines()) == 1
    changes = ("--set", "rounds=200", "--set", "run.executor=serial")
    atoll("run", "long.toml", *changes, "--resume").succeeded()
    atoll("run", "long.toml", *changes, "--out", "whole").succeeded()
    assert rows(folder / "runs" / "tiny") == rows(folder / "whole")
    assert last_checkpoint(folder / "runs" / "tiny") == last_checkpoint(folder / "whole")


def test_resume_with_another_model_of_the_same_name(atoll: Command, folder: Path) -> None:
    source = "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10{}))\n"
    (folder / "changing.py").write_text(source.format(""))
    words = ("run", "tiny.toml", "--set", "model.name=changing:make")
    atoll(*words).succeeded()
    (folder / "runs" / "tiny" / "summary.json").unlink()
    (folder / "changing.py").write_text(source.format(", bias=False") + "# of another length, so it is compiled anew\n")
    del sys.modules["changing"]
    assert "another model" in atoll(*words, "--resume").refused()


def test_one_cluster_is_fedavg(atoll: Command, folder: Path) -> None:
    common = ("--set", "data.partition=major-class", "--set", "data.rho_device=0.9")
    atoll("run", "tiny.toml", *common, "--set", "clustering.clusters=1", "--out", "one").succeeded()
    atoll("run", "tiny.toml", *common, "--set", "method.name=fedavg", "--out", "fedavg").succeeded()
    assert rows(folder / "one") == rows(folder / "fedavg")
    assert last_checkpoint(folder / "one") == last_checkpoint(folder / "fedavg")


@pytest.mark.more
def test_a_loss_that_is_not_finite(process: Command, atoll: Command, folder: Path) -> None:
    words = ("run", "tiny.toml", "--set", "local.lr=1e25", "--set", "local.steps=1", "--set", "rounds=9")
    sentence = process(*words).refused(code=1)
    for told in ("event ", "cluster ", "client ", "not finite"):
        assert told in sentence
    run = folder / "runs" / "tiny"
    kept = rows(run)
    assert kept
    assert kept[0]["event"] == 0
    assert not (run / "summary.json").exists()
    assert "not finite" in atoll(*words, "--resume").refused(code=1)
    assert rows(run) == kept


def test_no_pickle_and_no_leftovers(atoll: Command, folder: Path) -> None:
    atoll("run", "tiny.toml", "--set", "run.checkpoint_every=1", "--set", "rounds=5").succeeded()
    names = {
        str(path.relative_to(folder / "runs/tiny")) for path in (folder / "runs/tiny").rglob("*") if path.is_file()
    }
    stems = ("checkpoint/event-00000008", "checkpoint/event-00000010")
    assert names == {
        *("config.toml", "environment.json", "metrics.jsonl", "schedule.npz", "summary.json"),
        *(f"{stem}.{suffix}" for stem in stems for suffix in ("json", "safetensors")),
    }
    assert os.stat(folder / "runs/tiny/config.toml").st_size
