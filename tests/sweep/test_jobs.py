"""Runs in processes of their own: the same bits as here, failures on their own, stopped where they can go on."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from atoll import Experiment, run_events
from atoll.runs.run_folder import RunFolder
from atoll.settings.validation import Settings, validate
from atoll.sweep import jobs as running
from atoll.sweep.jobs import run_jobs
from atoll.sweep.sweep_worker import Answer, Job, News, _share_cores


def settings(**changes: Any) -> Settings:
    return validate(
        {
            "rounds": 3,
            "data": {"clients": 6, "samples": 8},
            "local": {"steps": 2, "batch_size": 4},
            "clustering": {"clusters": 2},
            "method": {"name": "fedcluster", "fraction": 1.0},
            **changes,
        }
    )


def untimed(folder: Path) -> list[dict[str, Any]]:
    return [{**row, "wall_time": None} for row in RunFolder(folder).rows()]


def ends(found: Iterator[tuple[Job, News] | None]) -> dict[str, News]:
    return {step[0].name: step[1] for step in found if step is not None and step[1].state != "running"}


@pytest.mark.more
def test_the_bits_are_those_of_a_run_here(tmp_path: Path) -> None:
    jobs = [Job(f"seed {i}", settings(seed=i), tmp_path / f"{i}", at_once=2) for i in range(3)]
    found = ends(run_jobs(iter(jobs), 2))
    assert {name: news.state for name, news in found.items()} == dict.fromkeys(
        ["seed 0", "seed 1", "seed 2"], "finished"
    )
    for i in range(3):
        list(run_events(Experiment(settings(seed=i)), tmp_path / f"here-{i}"))
        assert untimed(tmp_path / f"{i}") == untimed(tmp_path / f"here-{i}")


def test_a_failing_run_leaves_the_others_alone(tmp_path: Path) -> None:
    jobs = [
        Job("bad", settings(local={"lr": 1e30, "steps": 2, "batch_size": 4}), tmp_path / "bad"),
        Job("wrong", settings(data={"clients": 6, "samples": 8, "clients_file": "none.csv"}), tmp_path / "wrong"),
        Job("good", settings(), tmp_path / "good"),
    ]
    found = ends(run_jobs(iter(jobs), 1))
    assert found["good"].state == "finished"
    assert found["bad"].state == "failed"
    assert "not finite" in found["bad"].error
    assert found["bad"].trace == ""


OWN = """
import os, signal
from torch import nn

def dies():
    os.kill(os.getpid(), signal.SIGKILL)

def raises():
    raise SystemExit("enough")
"""


def test_a_process_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_models.py").write_text(OWN)
    jobs = [
        Job(name, settings(model={"name": f"own_models:{name}"}), tmp_path / name, (tmp_path,))
        for name in ("dies", "raises")
    ]
    found = ends(run_jobs(iter(jobs), 2))
    assert found["dies"].error == "its process was killed by signal SIGKILL, as happens when memory runs out"
    assert (found["raises"].state, "enough" in found["raises"].error) == ("failed", True)


def test_a_closed_sweep_stops_its_runs_where_they_can_go_on(tmp_path: Path) -> None:
    wanted = settings(rounds=400)
    job = Job("long", wanted, tmp_path / "long")
    with closing(run_jobs(iter([job]), 1)) as steps:
        for step in steps:
            if step is not None and step[1].row is not None and step[1].row["round"] >= 2:
                break
    folder = RunFolder(tmp_path / "long")
    assert not folder.is_finished
    assert list((tmp_path / "long/checkpoint").iterdir())
    assert not (tmp_path / "long/.lock").exists()
    assert 2 <= folder.rows()[-1]["round"] < 400


def test_a_judge_prunes(tmp_path: Path) -> None:
    asked: list[int] = []

    def judge(job: Job, news: News) -> Answer:
        assert news.row is not None
        asked.append(news.row["round"])
        return "prune" if news.row["round"] == 2 else "go on"

    found = ends(run_jobs(iter([Job("a", settings(rounds=50), tmp_path / "a")]), 1, judge))
    assert found["a"].state == "pruned"
    assert asked == [0, 1, 2]
    assert RunFolder(tmp_path / "a").rows()[-1]["round"] == 2


def test_jobs_are_taken_when_there_is_room(tmp_path: Path) -> None:
    """So that a search knows how the trials before have ended."""
    over: list[str] = []
    seen: list[int] = []

    def propose() -> Iterator[Job]:
        for i in range(3):
            seen.append(len(over))
            yield Job(f"{i}", settings(seed=i, rounds=1), tmp_path / f"{i}")

    for step in run_jobs(propose(), 1):
        if step is not None and step[1].state == "finished":
            over.append(step[0].name)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("code", "told"),
    [(3, "exit code 3"), (-signal.SIGSEGV, "killed by signal SIGSEGV"), (-200, "killed by signal 200")],
)
def test_how_a_process_died(code: int, told: str) -> None:
    assert told in running._how_it_died(code)


def test_runs_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.sweep.sweep_worker.count_cores", lambda: 8)
    assert _share_cores(settings(), 4).run.workers == 2
    assert _share_cores(settings(), 16).run.workers == 1
    assert _share_cores(settings(), 1).run.workers is None
    assert _share_cores(settings(run={"executor": "serial"}), 4).run.workers is None
    assert _share_cores(settings(run={"executor": "cores", "workers": 5}), 4).run.workers == 5
