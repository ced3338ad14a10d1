"""Executors chosen in the experiment file: the same rows, and what is refused."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.made_runs import timeless
from tests.tiers import thinned


def rows_of(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [timeless(line) for line in lines]


@pytest.mark.parametrize("method", thinned(["fedcluster", "cfl-mgd"], 1))
def test_cores_give_the_rows_of_serial(atoll: Command, folder: Path, method: str) -> None:
    settings = ["--set", f"method.name={method}", "--set", "local.optimizer=sgd"]
    for name, words in {
        "serial": ["--set", "run.executor=serial"],
        "cores": ["--set", "run.executor=cores", "--set", "run.workers=2"],
    }.items():
        atoll("run", "tiny.toml", *settings, *words, "--out", name).succeeded()
    assert rows_of(folder / "cores") == rows_of(folder / "serial")
    first, second = (sorted((folder / name / "checkpoint").glob("*.safetensors"))[-1] for name in ("cores", "serial"))
    assert first.read_bytes() == second.read_bytes()


def test_cores_train_whole_cohorts_where_one_pass_is_enough(atoll: Command, folder: Path) -> None:
    for name in ("weighted", "cores"):
        words = ("--set", "local.steps=1", "--set", f"run.executor={name}", "--set", "local.optimizer=sgd")
        atoll("run", "tiny.toml", *words, "--out", name).succeeded()
    assert rows_of(folder / "cores") == rows_of(folder / "weighted")


def test_stacked_gives_nearly_the_rows_of_serial(atoll: Command, folder: Path) -> None:
    for name in ("serial", "stacked"):
        atoll("run", "tiny.toml", "--set", f"run.executor={name}", "--out", name).succeeded()
    for one, other in zip(rows_of(folder / "stacked"), rows_of(folder / "serial"), strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
        assert one["client_updates"] == other["client_updates"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["run.executor=cores", "run.workers=0"], ["run.workers = 0", "at least 1"]),
        (["run.executor=cores", "run.debug=true"], ["run.debug = true", "run.executor = 'cores'", "use 'serial'"]),
        (["run.precision=tf32"], ["run.precision = 'tf32'", "run.device = 'cuda'"]),
        (["run.precision=half"], ["run.precision", "'half'"]),
        (["run.stack_bytes=0"], ["run.stack_bytes = 0"]),
        (["run.executor=weighted", "local.steps=3"], ["run.executor = 'weighted'", "local.steps = 3"]),
    ],
)
def test_refused(atoll: Command, folder: Path, changes: list[str], told: list[str]) -> None:
    sentence = atoll("run", "tiny.toml", *(word for change in changes for word in ("--set", change))).refused()
    for words in told:
        assert words in sentence
    assert not (folder / "runs").exists()


def test_auto_says_which_executor_it_takes_and_why(atoll: Command, folder: Path) -> None:
    done = atoll("run", "tiny.toml", "--set", "run.workers=1", "--out", "auto", "-v")
    done.succeeded()
    assert "run.executor = 'auto': serial (client by client; without workers, because there is one core" in done.err
    assert json.loads((folder / "auto" / "summary.json").read_text())["executor"].startswith("serial (client by client")
    named = atoll("run", "tiny.toml", "--set", "run.executor=serial", "--out", "serial")
    named.succeeded()
    assert "auto" not in named.err
    assert rows_of(folder / "auto") == rows_of(folder / "serial")


def test_more_workers_than_cores_are_warned_of(atoll: Command) -> None:
    done = atoll("run", "tiny.toml", "--set", "run.executor=cores", "--set", "run.workers=1000", "--out", "many")
    done.succeeded()
    assert "warning: run.workers = 1000: this process may use" in done.err


def test_debug_names_the_step_and_prints_the_traceback(atoll: Command) -> None:
    words = ("--set", "local.lr=1e30", "--set", "local.steps=5", "--set", "run.debug=true")
    done = atoll("run", "tiny.toml", *words, "--out", "bad")
    assert done.code == 1
    assert "Traceback (most recent call last)" in done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("error: event 0, cluster ")
    assert ", step 2: training failed (" in last


def test_precision_changes_the_rows(atoll: Command, folder: Path) -> None:
    for name in ("float32", "bfloat16"):
        atoll("run", "tiny.toml", "--set", f"run.precision={name}", "--out", name).succeeded()
    for one, other in zip(rows_of(folder / "float32")[1:], rows_of(folder / "bfloat16")[1:], strict=True):
        assert one["train_loss"] != other["train_loss"]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-2)
