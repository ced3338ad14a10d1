"""Long schedules as columns: the same events in little memory, however they are read."""

import gc
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import Clustering, Event, LocalRule, Schedule, cycling, hierarchical
from atoll.local.rule import sgd
from atoll.schedules import packed
from atoll.schedules.packed import Packed, pack
from atoll.schedules.schedule_files import digest_of, read_schedule, write_schedule
from tests.methods.test_patterns import random_network
from tests.problems import classification
from tests.schedules.test_recorded import METHODS, experiment, with_losses

MOST_BYTES, AS_OBJECTS = 200, 700  # an event with a cohort of six clients
CLIENTS = 60
POPULATION = classification(clients=CLIENTS)
CLUSTERING = Clustering(np.arange(CLIENTS) % 10, 10)


def in_blocks(schedule: Schedule, size: int, monkeypatch: pytest.MonkeyPatch) -> Schedule:
    monkeypatch.setattr(packed, "BLOCK", size)
    return replace(schedule, events=pack(iter(schedule.events)))


def assert_same(one: Event, other: Event) -> None:
    """All fields are equal, and of the same types."""
    for field in fields(Event):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        assert type(mine) is type(theirs), field.name
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype, field.name
            assert np.array_equal(mine, theirs), field.name
        else:
            assert mine == theirs, field.name
            assert repr(mine) == repr(theirs), field.name  # True is 1, and 1 is 1.0


@pytest.mark.parametrize("losing", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_packed_events_are_the_same(method: str, losing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(method).method.schedule
    whole = with_losses(made) if losing else made
    for size in (1, 2):
        schedule = in_blocks(whole, size, monkeypatch)
        assert isinstance(schedule.events, Packed)
        assert len(schedule) == len(whole)
        for i, event in enumerate(whole.events):
            assert_same(schedule.events[i - len(whole)], event)
        assert digest_of(schedule) == digest_of(whole)
        assert np.array_equal(schedule.ready_after, whole.ready_after)


def test_any_part_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cycling(POPULATION, CLUSTERING, rounds=3)
    schedule = in_blocks(whole, 7, monkeypatch)
    for part in (slice(3, 20), slice(None, None, -1), slice(-2, None), slice(40, 50)):
        assert [event.index for event in schedule.events[part]] == [event.index for event in whole.events[part]]
    with pytest.raises(IndexError):
        schedule.events[30]
    assert [event.index for event in schedule.ready(12)] == [event.index for event in whole.ready(12)]
    assert len(schedule.until(11.0)) == 11


def test_what_events_share_is_still_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = in_blocks(cycling(POPULATION, CLUSTERING, rounds=20, order="fixed"), 50, monkeypatch)
    for cluster in range(10):
        own = [schedule.events[place] for place in range(cluster, 190, 10)]
        for name in ("server", "starts", "clusters", "cohort"):
            assert len({id(getattr(event, name)) for event in own}) == 1


def test_a_packed_schedule_is_written_and_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = with_losses(experiment("fedbuff").method.schedule)
    schedule = in_blocks(whole, 2, monkeypatch)
    monkeypatch.setattr("atoll.schedules.schedule_files.BLOCK", 2)
    write_schedule(tmp_path / "schedule.npz", schedule)
    assert digest_of(read_schedule(tmp_path / "schedule.npz")) == digest_of(whole)
    assert digest_of(pickle.loads(pickle.dumps(schedule))) == digest_of(whole)


@dataclass(frozen=True)
class Odd:
    """Values that must not be taken for others that are equal to them, or nearly."""

    value: Any


@pytest.mark.parametrize(
    "values",
    [
        [True, False, True, 2],
        [1, 2.0, 3],
        [2**70, 1, 2],
        [-(2**62), 2**62, 0],
        [float("nan"), float("inf"), 1.0],
        [2.0**60, 1.0, 3.0],
        [float("inf"), 1.0, 2.0],
        [0.1, 0.5, 1e300],
        [(1,), (), (2, 3)],
        [(1.0,), (2,), (3.0,)],
        [(), (1.5,), (float("inf"), 2.0)],
        [np.array([1, 2]), np.array([]), np.array([3])],
        [np.array([1.5]), np.array([], float), np.array([2.0])],
        [np.array([True]), np.array([False]), np.array([True, True])],
        [np.array([[1, 2]]), np.array([[3, 4]]), np.array([[5, 6]])],
        [np.array([], np.int64), np.array([], np.int64), np.array([7])],
        [np.array([1], np.int32), np.array([2]), np.array([3])],
        [None, (1, 2), None],
        [None, np.array([1]), np.array([2])],
        ["a", "b", "c"],
    ],
)
def test_values_come_back_as_they_were(values: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "BLOCK", 3)
    for row, value in zip(pack(Odd(value) for value in values), values, strict=True):
        assert type(row.value) is type(value)
        assert np.asarray(row.value).dtype == np.asarray(value).dtype
        assert repr(row.value) == repr(value)


def asynchronous(events: int) -> Schedule:
    network = random_network(tuple(tuple(sorted(((j - 1) % 10, (j + 1) % 10))) for j in range(10)), 0, CLIENTS)
    rule = LocalRule(sgd, 0.1, steps=1)
    return hierarchical(POPULATION, CLUSTERING, network, rule, events, "cenasy", intra_rounds=1).schedule


def taking_turns(events: int) -> Schedule:
    return cycling(POPULATION, Clustering(np.arange(CLIENTS) % 2, 2), events // 2, fraction=0.2)


@pytest.mark.more
@pytest.mark.parametrize("make", [asynchronous, taking_turns])
def test_a_million_events_take_less_than_200_megabytes(
    make: Callable[[int], Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block has less to share when it is small, so this is more an event than in long schedules."""
    monkeypatch.setattr(packed, "BLOCK", 500)
    make(500)  # what is made once
    gc.collect()
    tracemalloc.start()
    schedule = make(8_000)
    gc.collect()
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(schedule.events, Packed)
    assert kept / 8_000 < MOST_BYTES
    assert most - kept < 4 * 500 * AS_OBJECTS  # a few blocks at a time are objects, never all
