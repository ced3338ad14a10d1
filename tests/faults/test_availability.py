"""Clients that come and go as a file says: who is absent by hand, and what is refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest

from atoll import Experiment, InputError
from atoll.faults.availability import read_availability

TRACE = "client,seconds,up\nanna,0,up\nanna,10,down\nben,5,up\nben,40,down\ncarl,0,1\ncarl,30,0\ncarl,20,true\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE)


def test_who_is_up_by_hand() -> None:
    """Ben is down before he comes up; rows may stand in any order."""
    known = read_availability("trace.csv", ("anna", "ben", "carl"))
    up = {t: known.at(np.arange(3), np.full(3, t)).tolist() for t in (0.0, 5.0, 9.9, 10.0, 30.0, 40.0)}
    assert up == {
        0.0: [True, False, True],
        5.0: [True, True, True],
        9.9: [True, True, True],
        10.0: [False, True, True],
        30.0: [False, True, False],
        40.0: [False, False, False],
    }


def seconds_apart(file: str, rounds: int) -> Experiment:
    """Return a run of two clients whose events begin a second apart."""
    return Experiment(
        rounds=rounds,
        data={"dataset": "digits", "clients": 2},
        method={"name": "fedavg", "fraction": 1.0},
        network={"seconds_per_sample": 0.0, "upload_seconds": 1.0},
        faults={"availability_file": file},
    )


def test_events_lose_who_is_down_when_they_begin() -> None:
    Path("numbers.csv").write_text("client,seconds,up\n0,0,up\n0,1.5,down\n1,0,up\n1,100,down\n")
    experiment = seconds_apart("numbers.csv", rounds=3)
    events = experiment.method.schedule.events
    assert [(event.cohort.tolist(), event.absent, event.seconds) for event in events] == [
        ([0, 1], 0, 1.0),
        ([0, 1], 0, 2.0),
        ([1], 1, 3.0),
    ]
    assert events[2].models_down == 1


@pytest.mark.parametrize(
    ("words", "instead", "told"),
    [
        ("ben,5", "bob,5", ["row 3", "unknown client 'bob'"]),
        ("ben,5,up\nben,40,down\n", "", ["client 'ben' has no row"]),
        ("ben,5", "ben,-5", ["row 3", "'seconds' is '-5'", "at least 0"]),
        ("ben,5,up", "ben,,up", ["row 3", "has no 'seconds'"]),
        ("ben,5,up", "ben,5,away", ["row 3", "'up' is 'away'", "up or down"]),
        ("seconds,up", "time,up", ["unknown column 'time'", "client, seconds, up"]),
    ],
)
def test_traces_that_are_refused(words: str, instead: str, told: list[str]) -> None:
    assert words in TRACE
    Path("trace.csv").write_text(TRACE.replace(words, instead))
    with pytest.raises(InputError) as error:
        read_availability("trace.csv", ("anna", "ben", "carl"))
    for part in ("trace.csv", *told):
        assert part in str(error.value)


def test_a_trace_that_ends_before_the_run() -> None:
    Path("short.csv").write_text("client,seconds,up\n0,0,up\n1,0,up\n1,1.5,down\n")
    experiment = seconds_apart("short.csv", rounds=9)
    with pytest.raises(InputError, match=r"'short\.csv': ends at 1\.5 s, but an event begins at 2 s"):
        experiment.check()
