"""Nodes that do not answer are left alone for a while; operators are told of what is refused."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import Experiment, InputError, run_events
from atoll.cli.fleet_roles import add_run
from atoll.fleet.agreed.messages import LossesRequest, TrainRequest, decode
from atoll.fleet.agreed.transport import Failure
from atoll.fleet.server.attendance import Attendance, Standing, read_strikes
from atoll.fleet.server.notices import Notices
from atoll.schedules.schedule_files import read_schedule
from tests.fleet.test_hostile import assert_replays, carry, filled, hostile, last_models
from tests.fleets import open_sites
from tests.memory_fleet import Fault, MemoryFleet
from tests.tiers import thinned

EVERYONE = [np.arange(3)]


def late_in(is_late: Callable[[int], bool], asked: list[int], reply: Failure | None = None) -> Fault:
    """Return the fault of a node that does not answer in some rounds; notes the rounds in which it is asked."""

    def fault(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure | None:
        if task == "describe":
            return honest()
        kind: Any = TrainRequest if task == "train" else LossesRequest
        request, _ = decode(payload, kind)
        asked.append(request.round)
        return (reply or Failure("late")) if is_late(request.round) else honest()

    return fault


def averaging(**changes: Any) -> Experiment:
    return hostile(**{"rounds": 18, "method": {"name": "fedavg", "fraction": 1.0}, "local": {"steps": 2}} | changes)


@pytest.mark.more
def test_a_silent_node_is_asked_ever_less_often(tmp_path: Path) -> None:
    experiment, asked = averaging(), list[int]()
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": late_in(lambda _: True, asked)})
    rows, told = carry(experiment, fleet, tmp_path / "live")
    assert asked == [0, 1, 2, 7, 16]
    assert (rows[-1]["late"], rows[-1]["absent"], rows[-1]["refused_aside"]) == (5, 13, 13)
    assert rows[-1]["client_updates"] == 18 * 3
    paused = "node 'node-1' (client 1) did not answer in time, 3 times in a row or again: it is not asked the next"
    assert [each for each in told if each.startswith(paused)] == [f"{paused} {n} times" for n in (4, 8, 16)]
    sent = [event.models_down for event in read_schedule(tmp_path / "live" / "happened.jsonl").events]
    assert sent == [4 if event in asked else 3 for event in range(18)]
    assert_replays(experiment, tmp_path)
    assert read_strikes(tmp_path / "live" / "strikes.jsonl") == {1: Standing(strikes=2, pause=15, doublings=3)}
    assert read_strikes(tmp_path / "replay" / "strikes.jsonl") == {}
    rows_of_status: list[dict[str, Any]] = [{"node": "a", "clients": [0, 1]}, {"node": "node-1", "clients": [2]}]
    add_run(rows_of_status, tmp_path / "live")
    assert [(row["strikes"], row["pause"]) for row in rows_of_status] == [(2, 15), (0, 0)]
    assert [row["refused"] for row in rows_of_status] == [{}, {"late": 5, "aside": 13}]


def test_without_strikes_everybody_is_always_asked(tmp_path: Path) -> None:
    experiment, asked = averaging(rounds=8, fleet={"strikes": "off"}), list[int]()
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": late_in(lambda _: True, asked)})
    carry(experiment, fleet, tmp_path / "live")
    assert asked == list(range(8))


def test_losses_by_which_clusters_are_found_are_asked_of_those_who_answer(tmp_path: Path) -> None:
    experiment, asked = averaging(rounds=9, method={"name": "ifca", "clusters": 2, "fraction": 1.0}), list[int]()
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": late_in(lambda _: True, asked)})
    carry(experiment, fleet, tmp_path / "live")
    assert asked == [0, 1, 2, 7]


@pytest.mark.more
@pytest.mark.parametrize("stop", thinned([1, 3, 5, 7, 8], 1))
def test_a_resumed_run_asks_whom_it_would_have_asked(stop: int, tmp_path: Path) -> None:
    """The node answers again from round 3 on, and is put aside by then."""
    experiment = averaging(rounds=10, run={"checkpoint_every": 1})
    sites = open_sites(experiment, tmp_path / "data")
    whole: list[int] = []
    carry(experiment, MemoryFleet(sites, {"node-1": late_in(lambda n: n < 3, whole)}), tmp_path / "whole")
    assert whole == [0, 1, 2, 7, 8, 9]
    parts: list[int] = []
    fleet = MemoryFleet(sites, {"node-1": late_in(lambda n: n < 3, parts)})
    with closing(run_events(experiment, tmp_path / "live", fleet=fleet)) as steps:
        for progress in steps:
            if progress.events_done >= stop:
                break
    with open(tmp_path / "live" / "strikes.jsonl", "a") as file:
        file.write('{"event": ')  # a line that a crash tore
    carry(experiment, fleet, tmp_path / "live", resume=True)
    assert parts == whole
    assert last_models(tmp_path / "live") == last_models(tmp_path / "whole")
    assert_replays(experiment, tmp_path)


def test_what_was_measured_before_a_stop_counts_after_it(tmp_path: Path) -> None:
    experiment, live = averaging(rounds=5, run={"checkpoint_every": 1}), tmp_path / "live"
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"))
    with closing(run_events(experiment, live, fleet=fleet)) as steps:
        for progress in steps:
            if progress.events_done == 3:
                break
        assert json.loads((live / "measured.json").read_bytes())["replies"] == [3] * 4  # though a kill may come
    carry(experiment, fleet, live, resume=True)
    measured = json.loads((live / "measured.json").read_bytes())
    assert measured["replies"] == [5] * 4
    (live / "summary.json").unlink()
    (live / "measured.json").write_text('{"replies": [1]}')
    with pytest.raises(InputError, match=r"^--resume: .*measured.json cannot be read .*; remove it to measure anew"):
        carry(experiment, fleet, live, resume=True)


def test_a_run_resumed_without_strikes_asks_everybody_at_once(tmp_path: Path) -> None:
    experiment, asked = averaging(rounds=6, run={"checkpoint_every": 1}), list[int]()
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": late_in(lambda n: n < 3, asked)})
    with closing(run_events(experiment, tmp_path / "live", fleet=fleet)) as steps:
        next(progress for progress in steps if progress.events_done == 4)
    assert read_strikes(tmp_path / "live" / "strikes.jsonl")[1].pause
    without = Experiment(experiment.settings.but("fleet", strikes="off"))
    carry(without, fleet, tmp_path / "live", resume=True)
    assert asked == [0, 1, 2, 4, 5]
    assert read_strikes(tmp_path / "live" / "strikes.jsonl") == {}


def test_where_nobody_answers_nobody_is_blamed() -> None:
    attendance = Attendance(1)
    attendance.take({0: "a", 1: "b", 2: "c"}, set(), set())
    assert [attendance.of(client) for client in range(3)] == [Standing()] * 3
    assert attendance.take_turn(EVERYONE) == [set()]
    attendance.take({0: "a", 1: "b"}, {2}, {2})
    assert attendance.take_turn(EVERYONE) == [{0, 1}]
    assert attendance.take_turn([np.array([0]), np.array([1])]) == [set(), set()]  # somebody must be asked
    attendance.let_back({0})
    assert attendance.take_turn(EVERYONE) == [{1}]


def test_who_answers_again_is_forgiven_step_by_step() -> None:
    attendance = Attendance(2)

    def late() -> None:
        attendance.take({0: "a"}, {1}, {1})

    late()
    attendance.take({}, {0}, set())  # what is refused came in time
    late()
    assert not attendance.of(0).pause
    late()
    assert attendance.of(0).pause == 4
    attendance.let_back({0})
    late()
    assert attendance.of(0).pause == 8
    for _ in range(2):
        attendance.take({}, {0}, {0})
    late()
    late()
    assert attendance.of(0).pause == 4
    for _ in range(9):
        late()
    assert attendance.of(0).pause == 64


def test_an_answer_that_is_refused_shortens_no_later_pause() -> None:
    attendance, pauses = Attendance(1), list[int]()
    for good in (None, None, False, True):
        if good is not None:
            attendance.take({}, {0}, {0} if good else set())
        attendance.take({0: "a"}, {1}, {1})
        pauses.append(attendance.of(0).pause)
    assert pauses == [4, 8, 16, 8]


def test_a_resumed_run_forgets_the_strikes_of_events_that_are_made_again(tmp_path: Path) -> None:
    path, attendance = tmp_path / "strikes.jsonl", Attendance(9)
    attendance.begin(path, 0)
    for event in range(3):
        attendance.take({1: "node-1"}, {0}, {0})
        attendance.note(event)
    again = Attendance(9)
    again.begin(path, 2)
    assert again.of(1) == Standing(strikes=2)
    assert read_strikes(path) == {1: Standing(strikes=2)}


def test_a_damaged_file_of_strikes_is_named(tmp_path: Path) -> None:
    (tmp_path / "strikes.jsonl").write_text("nothing\n")
    with pytest.raises(InputError, match=r"--resume: .*strikes\.jsonl is damaged"):
        Attendance(1).begin(tmp_path / "strikes.jsonl", 3)


def test_a_first_line_that_a_crash_tore_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "strikes.jsonl"
    path.write_text('{"event": 0, "cli')
    attendance = Attendance(3)
    attendance.begin(path, 0)
    attendance.take({1: "node-1"}, {0}, {0})
    attendance.note(0)
    assert read_strikes(path) == {1: Standing(strikes=1)}


def test_every_refusal_is_told_once_a_node_and_event(tmp_path: Path) -> None:
    experiment = averaging(rounds=3)
    fleet = MemoryFleet(open_sites(experiment, tmp_path / "data"), {"node-1": filled(3e38), "node-2": filled(np.nan)})
    _, told = carry(experiment, fleet, tmp_path / "live")
    assert told == [
        f"event {event}: node {node!r}: 1 refused or missing ({reason} 1)"
        for event in range(3)
        for node, reason in (("node-1", "too_large"), ("node-2", "not_finite"))
    ]


def test_silence_is_told_when_it_begins_and_many_nodes_in_one_line() -> None:
    told: list[str] = []
    notices = Notices(told.append)
    for event in range(4):
        notices.add("a", "gone")
        if event == 2:
            notices.forget("a")
        notices.tell(event)
    assert told == [f"event {event}: node 'a': 1 refused or missing (gone 1)" for event in (0, 2)]
    told.clear()
    for node in range(70):
        notices.add(f"n{node:02}", "unreadable", 2)
    notices.tell(4)
    assert len(told) == 21
    assert told[-1] == "event 4: 100 refused or missing of 50 more nodes"
