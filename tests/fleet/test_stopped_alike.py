"""Usual norms refuse the same updates and stop at the same event with the same sentence, simulated and on a fleet."""

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll import ClientTask, ClientUpdate, Experiment, RunError, Stage, run_events
from tests.cli.fleets import tensors_of
from tests.fleet.test_hostile import carry
from tests.fleets import open_sites, small
from tests.memory_fleet import MemoryFleet
from tests.tiers import thinned

FOUR: dict[str, Any] = {"clustering": {"clusters": 1}}
TWO: dict[str, Any] = {"clustering": {"clusters": 1}, "data": {"clients": 2}}
APART: dict[str, Any] = {"clustering": {"clusters": 4}, "model": {"name": "linear"}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "all, later": (FOUR, {"whose": [0, 1, 2, 3], "after": 3, "times": 1e6}, 3, "event 3: 4 of 4 updates are"),
    "the first": (APART, {"until": 4, "times": 1e9}, 0, "the models are worthless"),
    "long of two": (TWO, {"whose": [1], "times": 1e9}, 0, "with two clients nobody can tell"),
    "short of two": (TWO, {"whose": [1], "times": 1e-9}, 0, "with two clients nobody can tell"),
}  # fmt: skip


def scaled(whose: list[int], times: float, after: int = 0, until: int = 10**9) -> Stage:
    """Some clients' updates are so many times as long, in some events."""

    def send(task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        if task.client not in whose or not after <= task.event < until:
            return update
        model = {name: task.start[name] + times * (own - task.start[name]) for name, own in update.model.items()}
        return ClientUpdate(model, update.loss, update.state)

    return atoll.Stage(name="scaled", send=send)


def made(changes: dict[str, Any], stage: dict[str, Any]) -> Experiment:
    name = f"{__name__}:scaled"
    faults, fleet = {"usual_norms": "refuse"}, {"wait_seconds": 0.5, "deadline_seconds": 20.0}
    run = {"checkpoint_every": 1, "evaluate_every": 1}
    return small(**changes, rounds=20, travel={"stages": [name]} | stage, faults=faults, fleet=fleet, run=run)


def _first(changes: dict[str, Any]) -> list[int]:
    """Return who trains in the first event."""
    schedule = small(**changes, rounds=20).method.schedule
    assert schedule is not None
    return [int(client) for client in schedule.events[0].cohort]


@pytest.mark.more
@pytest.mark.parametrize("case", thinned(CASES, 1))
def test_a_run_stops_at_the_same_event_with_the_same_sentence(case: str, tmp_path: Path) -> None:
    changes, stage, least, told = CASES[case]
    experiment = made(changes, {"whose": _first(changes)} | stage)
    with pytest.raises(RunError, match=told) as simulated:
        list(run_events(experiment, tmp_path / "simulated"))
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"))
    with pytest.raises(RunError) as live:
        carry(experiment, fleet, tmp_path / "live")
    said = str(live.value)
    for client in range(4):
        said = said.replace(f"'node-{client}'", f"client {client}")
    assert said == str(simulated.value)
    assert f"client {stage.get('whose', _first(changes))[-1]} " in said
    assert tensors_of(tmp_path / "live") == tensors_of(tmp_path / "simulated")
    rows = [(tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("live", "simulated")]
    assert len(rows[0]) == len(rows[1]) > least


@pytest.mark.more
def test_what_is_refused_on_the_way_is_the_same(tmp_path: Path) -> None:
    experiment = made(FOUR, {"whose": [1], "times": 1e6})
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"))
    rows, _ = carry(experiment, fleet, tmp_path / "live")
    list(run_events(experiment, tmp_path / "simulated"))
    assert rows[-1]["refused_unusual"] == 20
    assert tensors_of(tmp_path / "live") == tensors_of(tmp_path / "simulated")
