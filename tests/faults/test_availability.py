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
        ("seconds,up", "time,up", ["unknown column 'time'", "client, seconds, up, compute, rate"]),
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


def paced(method: dict[str, object], trace: str, **more: object) -> Experiment:
    """Return a run of two clients that compute for 2 s and send for 1 s, whose speeds change as the trace says."""
    Path("speeds.csv").write_text(trace)
    Path("clients.csv").write_text("client,seconds_per_sample,samples\n0,0.2,10\n1,0.2,10\n")
    Path("links.csv").write_text("from,to,up_seconds\n0,north,1\n1,south,1\nnorth,server,0.5\nsouth,server,0.5\n")
    network = {"clients_file": "clients.csv", "file": "links.csv"}
    return Experiment(
        rounds=8,
        data={"dataset": "digits", "clients": 2, "samples": 10, "partition": "iid"},
        local={"steps": 1, "batch_size": 10},
        clustering={"method": "comaw", "clusters": 2},
        method={"name": "hierarchical", "intra_rounds": 2, **method},
        network=network,
        faults={"availability_file": "speeds.csv", **more},
    )


SLOWER = "client,seconds,compute,rate\n0,0,,1\n1,5,0.5,\n1,12,1,0.25\n1,99,2,\n"


def test_a_synchronous_event_is_as_long_as_it_would_be_for_speeds_when_it_begins() -> None:
    """2 x (2 + 1) + 0.5; from 5 s on 2 x (4 + 1) + 0.5, from 12 s on 2 x (2 + 4) + 0.5."""
    events = paced({"pattern": "censyn"}, SLOWER).method.schedule.events
    assert [event.seconds for event in events] == [6.5, 6.5 + 10.5, 17.0 + 12.5, 29.5 + 12.5]


def test_an_asynchronous_cluster_has_the_speeds_with_which_its_own_work_begins() -> None:
    events = paced({"pattern": "cenasy"}, SLOWER).method.schedule.events
    assert [(event.active, event.began, event.seconds) for event in events] == [
        ((0,), (0.0,), 6.5),
        ((1,), (0.0,), 6.5),
        ((0,), (6.5,), 13.0),
        ((1,), (6.5,), 17.0),
    ]


def test_who_becomes_slow_misses_the_deadline() -> None:
    """The event from 6.5 s on waits 4 s twice for client 1, who would take 5 s, and goes on without it."""
    events = paced({"pattern": "censyn"}, SLOWER, deadline_seconds=4.0).method.schedule.events
    assert [(event.cohort.tolist(), event.late, event.seconds) for event in events[:2]] == [
        ([0, 1], 0, 6.5),
        ([0], 1, 15.0),
    ]


@pytest.mark.parametrize(
    ("method", "ends"),
    [
        ({"name": "fedavg", "fraction": 1.0}, [3.0, 6.0, 11.0, 16.0]),
        ({"name": "fedavg", "fraction": 1.0, "select": "round-robin"}, [3.0, 6.0, 11.0, 16.0]),
        ({"name": "ifca", "clusters": 2, "fraction": 1.0}, [3.0, 6.0, 11.0, 16.0]),
        ({"name": "fedbuff", "concurrency": 2, "buffer": 2}, [3.0, 6.0, 11.0, 16.0]),
        ({"name": "fedat", "tiers": 1, "fraction": 1.0}, [3.0, 6.0, 11.0, 16.0]),
    ],
)
def test_methods_with_one_server_go_by_the_same_speeds(method: dict[str, object], ends: list[float]) -> None:
    """2 + 1 s a round, from 5 s on 4 + 1."""
    Path("speeds.csv").write_text("client,seconds,compute\n0,0,1\n1,5,0.5\n1,99,1\n")
    experiment = Experiment(
        rounds=4,
        data={"dataset": "digits", "clients": 2},
        local={"steps": 1, "batch_size": 10},
        method=method,
        network={"seconds_per_sample": 0.2, "upload_seconds": 1.0},
        faults={"availability_file": "speeds.csv"},
    )
    assert [event.seconds for event in experiment.method.schedule.events] == pytest.approx(ends)


@pytest.mark.parametrize(
    ("words", "instead", "told"),
    [
        ("5,0.5,", "5,0,", "row 2: 'compute' is '0'; it must be a finite number greater than 0"),
        ("1,0.25", "1,fast", "row 3: 'rate' is 'fast'; it must be a finite number greater than 0"),
        ("0,0,,1", "0,0,,", "row 1: says nothing; it must have one of 'up', 'compute', 'rate'"),
    ],
)
def test_speeds_that_are_refused(words: str, instead: str, told: str) -> None:
    assert words in SLOWER
    with pytest.raises(InputError) as error:
        paced({}, SLOWER.replace(words, instead)).check()
    assert f"speeds.csv: {told}" in str(error.value)


def test_speeds_that_change_do_not_go_with_given_frequencies() -> None:
    experiment = paced({"pattern": "cenasy"}, SLOWER)
    settings = experiment.settings
    changed = settings.model_copy(update={"network": settings.network.model_copy(update={"frequencies": "transfer"})})
    with pytest.raises(InputError, match=r"network\.frequencies: cannot be used with changing speeds"):
        Experiment(changed).check()
