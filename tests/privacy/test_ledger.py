"""The ledger: written before each release, whatever ends the run; and nothing else is taken for it."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from atoll import Experiment, InputError, RunError, Settings, run_events
from atoll.privacy.ledger import LEDGER, SEAL, Account, begin_ledger, open_ledger
from atoll.privacy.mechanism import Cost
from atoll.privacy.private_release import Publisher
from atoll.runs.row_writer import account_of

pytest.importorskip("dp_accounting")

BASE: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 8, "samples": 12},
    "model": {"name": "linear"},
    "local": {"lr": 0.2, "steps": 1, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"name": "fedcluster", "fraction": 0.5},
    "privacy": {"trust": "server", "clip": 1.0, "noise": 3.0},
    "run": {"executor": "serial", "checkpoint_every": 1, "evaluate_every": 4},
}


def experiment(**privacy: Any) -> Experiment:
    return Experiment(Settings(**{**BASE, "privacy": BASE["privacy"] | privacy}))


def carry_out(made: Experiment, folder: Path, resume: bool = False) -> list[str]:
    return [warning for step in run_events(made, folder, resume=resume) for warning in step.warnings]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LEDGER).read_bytes().splitlines()]


def summary_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_bytes()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    carry_out(experiment(), folder)
    return folder


def test_plan_and_ledger_of_an_undisturbed_run_are_one(finished: Path) -> None:
    made = experiment()
    assert made.planned.private is not None
    head, *entries = lines_of(finished)
    counts = np.zeros(8, int)
    for entry in entries:
        counts[entry["clients"]] += entry["releases"]
    assert counts.tolist() == made.planned.private.plan.releases.tolist()
    told = summary_of(finished)["privacy"]
    assert told["epsilon"] == made.planned.private.plan.epsilon_after(len(made.method.schedule))
    assert told["worst_client"] == made.planned.private.plan.worst_client
    assert told["is_private"] is False
    assert head["trust"] == "server"
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_bytes().splitlines()]
    assert rows[0]["epsilon"] == 0
    assert rows[-1]["epsilon"] == told["epsilon"]
    assert all(row["local_loss"] is None for row in rows)


class Killed(BaseException):
    """Ends a run as a kill does: nobody catches it to save anything."""


class Killer:
    """Counts the times that files are flushed, and kills at one of them, before it or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self.left -= 1
            if self.left == 0:
                raise Killed
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("wanted", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_after_kills_never_less_is_spent_than_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path, wanted: int
) -> None:
    """Releases are counted where they are made; the ledger on disk is read after every kill."""
    made, killer, rng = experiment(), Killer(monkeypatch), np.random.default_rng(0)
    plain, kills, runs = Publisher.publish, 0, 0
    released: dict[int, int] = {}

    def publish(self: Publisher, event: Any, repeat: int, *rest: Any) -> Any:
        released[event.index] = repeat + 1
        return plain(self, event, repeat, *rest)

    monkeypatch.setattr(Publisher, "publish", publish)
    while kills < wanted:
        folder, spent, resume = tmp_path / str(runs), -1, False
        released.clear()
        while True:
            killer.left = int(rng.integers(1, 60))
            try:
                carry_out(made, folder, resume)
            except Killed:
                kills += 1
                killer.left = 0
            else:
                break
            resume = (folder / "config.toml").exists()
            charged = {e["event"]: e["releases"] for e in whole(folder) if "event" in e} if resume else {}
            assert all(charged.get(event, 0) >= repeats for event, repeats in released.items())
            assert sum(charged.values()) >= spent
            spent = sum(charged.values())
        killer.left, runs = 0, runs + 1
        assert lines_of(folder) == lines_of(finished)
        assert timeless(folder) == timeless(finished)


def timeless(folder: Path) -> dict[str, Any]:
    """Return what the summary says, without wall-clock times."""
    told = summary_of(folder)
    return told | {"final": told["final"] | {"wall_time": 0}, "executor": ""}


def whole(folder: Path) -> list[dict[str, Any]]:
    """Return the lines that a crash has not torn."""
    return [json.loads(line) for line in (folder / LEDGER).read_bytes().split(b"\n")[:-1]]


def interrupted(folder: Path, **privacy: Any) -> None:
    """Run half of the events; then the user stops it."""
    steps = run_events(experiment(**privacy), folder)
    for step in steps:
        if step.events_done == 5:
            break
    steps.close()


def test_a_clip_that_adapts_goes_on_where_it_was(tmp_path: Path) -> None:
    adaptive = {"quantile": 0.5, "quantile_noise": 2.0}
    carry_out(experiment(**adaptive), tmp_path / "whole")
    interrupted(tmp_path / "parts", **adaptive)
    carry_out(experiment(**adaptive), tmp_path / "parts", resume=True)
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")
    ends = [load_file(tmp_path / name / "checkpoint/event-00000008.safetensors") for name in ("whole", "parts")]
    assert float(ends[0]["0/clip@privacy"]) == float(ends[1]["0/clip@privacy"]) != 1.0


Spoil = Callable[[Path], object]


def shorten(folder: Path, by: int = 1) -> None:
    kept = (folder / LEDGER).read_bytes().splitlines(keepends=True)[:-by]
    (folder / LEDGER).write_bytes(b"".join(kept))


def shorten_both(folder: Path) -> None:
    """Shorten it and its seal alike, by the last event alone; the checkpoint knows better."""
    account = account_of(experiment())
    assert account is not None
    ledger = begin_ledger(folder, account)
    for event in experiment().method.schedule.events[:4]:
        ledger.note(event)


def change_a_client(folder: Path) -> None:
    text = (folder / LEDGER).read_text()
    spoilt = [line.partition(', "crc32"')[0] + "}\n" for line in text.splitlines()]
    entry = json.loads(spoilt[2])
    spoilt[2] = json.dumps(entry | {"clients": [7 - k for k in entry["clients"]]}) + "\n"
    (folder / LEDGER).write_text("".join(spoilt))


def rewrite(folder: Path) -> None:
    """Write as many releases of other clients, line after line as they should be, but not the seal."""
    seal, account = (folder / SEAL).read_bytes(), account_of(experiment())
    assert account is not None
    ledger = begin_ledger(folder, account)
    for event in experiment().method.schedule.events[:5]:
        ledger.note(replace(event, cohort=7 - event.cohort))
    (folder / SEAL).write_bytes(seal)


def of_another_run(folder: Path) -> None:
    account = account_of(experiment(noise=5.0))
    assert account is not None
    begin_ledger(folder, account)


SPOILT: Mapping[str, tuple[Spoil, str]] = {
    "deleted": (lambda folder: (folder / LEDGER).unlink(), "without its ledger a private run cannot continue"),
    "its seal deleted": (lambda folder: (folder / SEAL).unlink(), "without its ledger a private run cannot continue"),
    "shortened": (shorten, r"it has \d of 5 releases"),
    "shortened with its seal": (shorten_both, "event 4, which is completed, is missing"),
    "emptied": (lambda folder: (folder / LEDGER).write_bytes(b""), "is not this run's whole ledger"),
    "rewritten": (rewrite, "its seal belongs to another ledger"),
    "changed": (change_a_client, "does not match the lines before"),
    "of another run": (of_another_run, "it is another run's"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_another_ledger_is_refused(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "run"
    interrupted(folder)
    spoil, told = SPOILT[what]
    spoil(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=told):
        carry_out(experiment(), folder, resume=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_torn_line_was_no_release(tmp_path: Path, finished: Path) -> None:
    folder = tmp_path / "run"
    interrupted(folder)
    with (folder / LEDGER).open("ab") as file:
        file.write(b'{"event": 5, "rel')
    carry_out(experiment(), folder, resume=True)
    assert lines_of(folder) == lines_of(finished)


def test_a_finished_runs_ledger_must_be_there_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    carry_out(experiment(), folder)
    (folder / LEDGER).unlink()
    with pytest.raises(InputError, match="without its ledger"):
        carry_out(experiment(), folder, resume=True)


def test_the_run_ends_before_the_release_that_would_exceed_the_budget(tmp_path: Path) -> None:
    free = experiment().planned.private
    assert free is not None
    three = free.plan.epsilon(2)
    made = experiment(epsilon=three + 1e-9)
    assert made.planned.private is not None
    done = len(made.method.schedule)
    assert free.plan.worst_after[done] == 2 < free.plan.worst_after[done + 1]
    seeded, warning = carry_out(made, tmp_path / "run")
    assert "it hides nothing from anyone who knows the seed" in seeded
    assert f"is spent after event {done} of {free.events_planned}, where the run ends" in warning
    told = summary_of(tmp_path / "run")
    assert told["events"] == done
    assert told["privacy"]["epsilon"] <= told["privacy"]["budget"]
    assert list((tmp_path / "run" / "checkpoint").glob(f"event-*{done}*"))


def test_the_ledger_itself_refuses_what_the_budget_does_not_cover(tmp_path: Path) -> None:
    made = experiment()
    account = account_of(made)
    assert account is not None
    ledger = begin_ledger(tmp_path, Account(account.run, 8, account.mechanism, account.cost, most_releases=0))
    with pytest.raises(RunError, match=r"would exceed privacy\.epsilon"):
        ledger.note(made.method.schedule.events[0])
    assert len(lines_of(tmp_path)) == 1


def test_a_release_that_is_made_again_is_charged_once_and_must_be_the_same(tmp_path: Path) -> None:
    made = experiment()
    account, events = account_of(made), made.method.schedule.events
    assert account is not None
    ledger = begin_ledger(tmp_path, account)
    ledger.note(events[0])
    ledger.note(events[0])
    assert ledger.releases.sum() == len(events[0].cohort)
    assert open_ledger(tmp_path, account, 1).releases.tolist() == ledger.releases.tolist()
    with pytest.raises(RunError, match="with other clients"):
        ledger.note(replace(events[1], index=0))


@pytest.mark.parametrize(("is_fleet", "noise"), [(True, 1.0), (True, 0.0), (False, 1.0)])
def test_a_run_is_private_with_noise_that_nobody_can_take_out(is_fleet: bool, noise: float, tmp_path: Path) -> None:
    """Neither without noise, nor with noise from the seed."""
    account = account_of(experiment())
    assert account is not None
    account = replace(account, cost=Cost((noise,)), is_fleet=is_fleet)
    assert begin_ledger(tmp_path, account).summary()["is_private"] == (is_fleet and noise > 0)
