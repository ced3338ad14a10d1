"""`atoll reproduce`: runs, goes on after any stop, makes a page, goes round missing data and runs that fail."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, cast

import pytest

from atoll import make_runs
from atoll.reproduce import recipe_runs as running
from atoll.support import environment
from atoll.support.errors import RunError
from tests.cli.conftest import Command
from tests.cli.pages import ROOT

FOLDER = Path("runs/reproduce-quickstart-tiny")


@pytest.mark.more
def test_a_figure_from_nothing_to_a_page(atoll: Command) -> None:
    done = atoll("reproduce", "quickstart", "--jobs", "1", "--seeds", "2", "--json")
    made = json.loads(done.succeeded())
    (result,) = made["recipes"]
    assert (result["recipe"], result["runs"], result["finished"], result["claims"]) == ("quickstart", 4, 4, [])
    assert made["seconds"] == result["seconds"] > 0
    assert (made["seeds"], made["seconds_left"]) == (2, 0)
    assert json.loads((FOLDER / "verdicts.json").read_text()) == {
        name: value for name, value in made.items() if name not in ("page", "problems")
    }
    page = (FOLDER / "index.html").read_text()
    assert page.count("data:image/svg+xml") == 1
    metrics = FOLDER / "quickstart/fedavg-seed-1/metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    again = atoll("reproduce", "quickstart", "--jobs", "1")
    assert again.err.count("(already finished)") == 4
    assert "spent, nothing left" in again.out
    assert metrics.stat().st_mtime_ns == before
    (FOLDER / "index.html").unlink()
    assert "0 claims: no claims" in atoll("reproduce", "quickstart", "--no-run").succeeded()
    assert (FOLDER / "index.html").read_text() == page
    told = atoll("reproduce", "quickstart", "--scale", "small", "--out", FOLDER).refused()
    assert "holds runs at scale tiny; add --scale tiny" in told
    assert "has 2 seeds already; omit it" in atoll("reproduce", "quickstart", "--seeds", "1").refused()
    one = atoll("reproduce", "quickstart", "--jobs", "1", "--seeds", "3", "--only", "FedAvg, seed 2")
    assert "[1/1] quickstart: FedAvg, seed 2" in one.err
    assert len(list((FOLDER / "quickstart").glob("*-seed-*/summary.json"))) == 5
    more = atoll("reproduce", "quickstart", "--jobs", "1", "--seeds", "3")
    assert more.err.count("(already finished)") == 5
    assert len(list((FOLDER / "quickstart").glob("*-seed-*/summary.json"))) == 6


@pytest.mark.more
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_the_same_command_goes_on_after_a_kill(atoll: Command, jobs: str) -> None:
    """SIGKILL in the midst of runs: what is finished stays, the others go on, to the same numbers as without it."""
    options = ["reproduce", "quickstart", "--jobs", jobs, "--seeds", "2"]
    command = [sys.executable, "-m", "atoll", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as going:
        deadline = time.monotonic() + 120
        while not list(FOLDER.glob("quickstart/*/summary.json")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(going.pid, signal.SIGKILL)
    finished = len(list(FOLDER.glob("quickstart/*/summary.json")))
    assert 1 <= finished < 4
    halfway = json.loads(atoll("reproduce", "quickstart", "--no-run", "--json").succeeded())
    assert halfway["recipes"][0]["finished"] >= finished
    assert halfway["seconds_left"] > 0
    atoll(*options).succeeded()
    atoll(*options, "--out", "runs/whole").succeeded()
    for whole in Path("runs/whole/quickstart").glob("*/metrics.jsonl"):
        assert accuracies(whole) == accuracies(FOLDER / "quickstart" / whole.parent.name / "metrics.jsonl")


def accuracies(metrics: Path) -> list[float]:
    return [json.loads(line)["test_accuracy"] for line in metrics.read_text().splitlines()]


@pytest.mark.slow
def test_claims_in_two_processes(atoll: Command) -> None:
    done = atoll("reproduce", "cfl-mgd-regression", "--jobs", "2", "--json")
    made = json.loads(done.succeeded())
    (result,) = made["recipes"]
    (claim,) = result["claims"]
    assert (claim["status"], claim["source"], claim["seeds"]) == (claim["status"], "Theorem 1", 3)
    assert claim["status"] in ("holds", "undecided")  # the seeds differ much
    assert min(claim["ours"]) > 10
    assert all(low < mean < high for mean, (low, high) in zip(claim["ours"], claim["intervals"], strict=True))
    assert result["paper_seconds"] > result["seconds"]
    assert "Theorem 1" in Path(made["page"]).read_text()


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no data set be here, nor be downloaded."""

    def offline(name: str, base: Path) -> Path:
        raise RunError(f"{name} cannot be downloaded")

    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    monkeypatch.setattr("atoll.data.datasets.download", offline)


@pytest.mark.more
@pytest.mark.usefixtures("without_data")
def test_without_any_data_it_ends_with_an_error(atoll: Command) -> None:
    done = atoll("reproduce", "cfl-mgd-table-2", "--jobs", "1", "--json")
    assert done.refused(1) == "cifar10 cannot be downloaded; mnist cannot be downloaded"
    assert not Path("runs/reproduce-cfl-mgd-table-2-tiny/index.html").exists()


@pytest.mark.more
@pytest.mark.usefixtures("without_data")
def test_without_data_what_is_finished_is_judged_and_the_rest_told(atoll: Command) -> None:
    kept = Path("kept/cfl-mgd-figure-4/tiny")
    shutil.copytree(ROOT / "evidence/cfl-mgd-figure-4/tiny", kept)
    (kept / "fedavg-seed-1.json.gz").unlink()
    made = json.loads(atoll("reproduce", "cfl-mgd-figure-4", "--jobs", "1", "--evidence", "kept", "--json").succeeded())
    assert made["problems"] == {"cfl-mgd-figure-4": ["mnist cannot be downloaded"]}
    (result,) = made["recipes"]
    assert (result["runs"], result["finished"]) == (12, 11)
    assert [claim["seeds"] for claim in result["claims"]] == [2, 2, 3]


def test_a_clustering_of_any_place_can_be_chosen(atoll: Command) -> None:
    told = atoll("reproduce", "feduc-figure-5", "--seeds", "1", "--only", "DatAww").refused()
    assert "DatAw" in told.partition("they are")[2]


def test_files_that_are_all_refused_are_told_one_by_one(atoll: Command, tmp_path: Path) -> None:
    place = tmp_path / "kept/quickstart/tiny"
    place.mkdir(parents=True)
    for name in ("fedcluster-m-10-seed-0", "fedavg-seed-0"):
        (place / f"{name}.json.gz").write_bytes(b"no gzip")
    done = atoll("reproduce", "quickstart", "--seeds", "1", "--jobs", "1", "--evidence", tmp_path / "kept")
    assert done.code == 1
    assert "error: " not in done.err
    assert done.err.count("fedavg-seed-0.json.gz") == 1


@pytest.mark.more
def test_a_process_that_is_killed_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool(ThreadPoolExecutor):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__(1)

        def submit(self, *_: Any, **__: Any) -> Any:
            return super().submit(self._break)

        def _break(self) -> None:
            raise BrokenProcessPool("terminated abruptly")

    monkeypatch.setattr(running, "ProcessPoolExecutor", Pool)
    with pytest.raises(RunError, match=r"the process of a run was killed, .*; lower --jobs and give the same command"):
        list(running.carry_out_all([cast(running.RecipeTask, None)], 2))


@pytest.mark.more
@pytest.mark.parametrize("idle", [False, True])
def test_a_signal_to_this_process_alone_stops_the_runs_of_the_others(
    tmp_path: Path, idle: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """As `kill` sends it; their checkpoints are saved, and later signals do not wait for the runs' ends."""
    changes = ["local.steps=1", "model.name=linear", "clustering.clusters=1", "run.evaluate_every=9000"]
    changes += ["data.clients=4", "data.samples=4", "method.fraction=0.25"]
    rounds = {"one": 30_000, "two": 1 if idle else 30_000}
    tasks = [
        running.RecipeTask("mine", "mine", tmp_path / name, (make_runs({}, changes=[*changes, f"rounds={count}"])[0],))
        for name, count in rounds.items()
    ]
    awaited = [tmp_path / "one" / "config.toml", tmp_path / "two" / ("summary.json" if idle else "config.toml")]

    def interrupt() -> None:
        while not all(file.exists() for file in awaited):
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    others = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))  # no child of the runs' pool
    others.start()
    sender = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start this in the background
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        list(running.carry_out_all(tasks, 2))
    sender.join()
    signal.signal(signal.SIGINT, before)
    others.join(1)
    assert others.is_alive()
    others.kill()
    others.join()
    assert "Traceback" not in capfd.readouterr().err
    for task in tasks[: 1 if idle else 2]:
        assert not (task.folder / "summary.json").exists()
        assert not (task.folder / ".lock").exists()
        assert list((task.folder / "checkpoint").glob("event-*.json"))


@pytest.mark.more
def test_a_failed_run_is_told_and_the_others_go_on(atoll: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    train = running._train

    def fail_one(task: running.RecipeTask) -> running.Outcome:
        if task.title == "FedAvg, seed 1":
            raise RunError("the disk is full")
        return train(task)

    monkeypatch.setattr(running, "_train", fail_one)
    done = atoll("reproduce", "quickstart", "--jobs", "1", "--json")
    assert done.code == 1
    assert "failed: quickstart, FedAvg, seed 1: the disk is full" in done.err
    made = json.loads(done.out)
    assert made["recipes"][0]["finished"] == 5
    assert made["problems"]["quickstart"] == ["quickstart, FedAvg, seed 1: the disk is full"]


def test_bad_input(atoll: Command) -> None:
    assert "did you mean 'fedcluster'" in atoll("reproduce", "fedclustr").refused()
    assert atoll("reproduce", "all", "--scale", "huge").refused() == (
        "--scale huge: must be tiny, small, paper, or with --no-run largest"
    )
    assert atoll("reproduce", "all", "--jobs", "0").refused() == "--jobs 0: must be at least 1"
    assert atoll("reproduce", "all", "--device", "toaster").refused().startswith("run.device = 'toaster': is not")
    assert atoll("reproduce", "all", "--seeds", "0").refused() == "--seeds 0: must be at least 1"
    told = atoll("reproduce", "quickstart", "--only", "FedAvgg").refused()
    assert told == "--only FedAvgg: no run has this in its panel or label; they are FedCluster, M = 10; FedAvg"
    told = atoll("reproduce", "quickstart", "--only", "FedAvg", "--no-run").refused()
    assert told == "--only FedAvg: is about what is run; leave out --no-run"
    told = atoll("reproduce", "quickstart", "--jobs", "2", "--no-run").refused()
    assert told == "--jobs 2: is about what is run; leave out --no-run"
    assert "holds files other than reproduced figures" in atoll("reproduce", "quickstart", "--out", ".").refused()
    told = "--out new: holds no reproduced figures; leave out --no-run"
    assert atoll("reproduce", "quickstart", "--no-run", "--out", "new").refused() == f"{told}, or give --evidence"
    Path("kept").mkdir()
    given = atoll("reproduce", "quickstart", "--no-run", "--out", "new", "--evidence", "kept")
    assert given.refused() == f"{told}; kept has none at this scale"
    assert "tiny.toml is a file, or lies below" in atoll("reproduce", "quickstart", "--out", "tiny.toml").refused()
    told = atoll("reproduce", "quickstart", "--evidence", "tiny.toml").refused()
    assert told == "--evidence tiny.toml: is not a folder"


@pytest.mark.more
def test_the_command_takes_kept_runs_as_done_and_makes_the_page_from_them_alone(
    atoll: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_git_revision", lambda: "0123abc")
    told = atoll("reproduce", "quickstart", "--no-run", "--evidence", "kept").refused()
    assert told == "--evidence kept: is not a folder"
    atoll("reproduce", "quickstart", "--jobs", "1", "--seeds", "2", "--evidence", "kept").succeeded()
    assert len(list(Path("kept/quickstart/tiny").glob("*.gz"))) == 4
    again = atoll("reproduce", "quickstart", "--jobs", "1", "--out", "again", "--evidence", "kept", "--seeds", "1")
    assert again.err.count("(already finished)") == 4  # the evidence has a second seed
    Path("again/quickstart/fedavg-seed-1/config.toml").unlink()  # as when it is killed while it takes them
    words = ("--jobs", "1", "--out", "again", "--evidence", "kept")
    assert atoll("reproduce", "quickstart", *words).err.count("(already finished)") == 4
    Path("kept").rename("evidence")
    done = atoll("reproduce", "quickstart", "--no-run", "--out", "page", "--json")
    (result,) = json.loads(done.succeeded())["recipes"]
    assert (result["finished"], result["runs"]) == (4, 4)
    assert json.loads(Path("page/reproduce.json").read_text())["scale"] == "largest"
    atoll("reproduce", "quickstart", "--no-run", "--out", "again", "--seeds", "9").succeeded()
    again = atoll("reproduce", "quickstart", "--jobs", "1", "--out", "again", "--seeds", "2")
    assert again.err.count("(already finished)") == 4, "a page alone adds no seeds to the folder"
    Path("evidence/quickstart/tiny/fedavg-seed-1.json.gz").write_bytes(b"")
    refused = atoll("reproduce", "quickstart", "--jobs", "1", "--out", "new")
    assert "it is cut short or too long" in refused.err
    told = atoll("reproduce", "quickstart", "--scale", "largest").refused()
    assert "--scale largest: runs nothing; add --no-run" in told


@pytest.mark.more
def test_a_run_that_is_not_kept_is_told_without_progress_too(atoll: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_git_revision", lambda: None)
    words = ("--jobs", "1", "--seeds", "1", "--only", "FedAvg", "--evidence", "kept", "--quiet")
    done = atoll("reproduce", "quickstart", *words)
    assert "fedavg-seed-0 is not kept as evidence: it ran at no commit (no repository)" in done.err
    assert not list(Path().rglob("*.gz"))
