"""What an event costs does not grow with the clients outside its cohort, nor with the events that follow it."""

import json
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import (
    Clustering,
    Dataset,
    Event,
    Experiment,
    LocalRule,
    Method,
    Schedule,
    cycling,
    fedavg,
    init,
    make_population,
    make_runs,
    run_events,
    train,
)
from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.data.dealing.class_counts import exact_counts
from atoll.engine.assignment import Assignment, as_scheduled
from atoll.engine.cohorts import ClusterUpdate, Cohort, Executor
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.schedules.events import FROM_SERVER, Mix
from atoll.schedules.schedule_files import write_schedule
from atoll.support.arrays import Floats, Ids

FEW, MANY = 1_000, 1_000_000
LARGEST_RATIO = 1.5  # one pass over a million numbers takes longer than half of these tests' events
WORK_ON_ALL = 3.0  # what such a pass makes of the ratio, at least


class Idle:
    """An executor that gives every cohort's start model back."""

    bits = "idle"

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        return [ClusterUpdate(cohort.start, 1.0) for cohort in cohorts]

    def carries_through(self, combine: Combine) -> bool:
        return False

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        raise NotImplementedError

    def close(self) -> None:
        """Hold nothing."""


def pool(root: str | None = None) -> Dataset:
    inputs = np.random.default_rng(0).normal(size=(1_000, 4)).astype(np.float32)
    return Dataset("synthetic", inputs, inputs.sum(axis=1), inputs[:5], inputs[:5].sum(axis=1), 0, loss="squared")


def idle_run(clients: int, look: Callable[[int], Any]) -> Iterator[object]:
    """The engine's own work: a cohort of two that trains in no time; `look` is done at every event."""

    def identity(event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
        look(clients)
        return as_scheduled(event, starts, executor)

    population = make_population(pool(), np.zeros((clients, 1), np.int32))
    found: Assignment = identity
    method = Method(
        fedavg(population, LocalRule(sgd, 0.1, steps=1), 300, fraction=2 / clients).schedule,
        LocalRule(sgd, 0.1, steps=1),
        found,
    )
    return train(method, Idle(), init(method, {"w": torch.zeros(3)}))


def ratio_of(few: Iterator[object], many: Iterator[object], turns: int = 25) -> float:
    """The median over turns of the processor seconds of ten events of `many` to those of `few`."""
    ratios = []
    for _ in range(turns):
        seconds = []
        for each in (few, many):
            began = time.process_time()
            for _ in range(10):
                next(each)
            seconds.append(time.process_time() - began)
        ratios.append(seconds[1] / seconds[0])
    return float(np.median(ratios))


def test_the_engine_does_no_work_for_clients_outside_the_cohort() -> None:
    assert ratio_of(idle_run(FEW, lambda _: None), idle_run(MANY, lambda _: None)) < LARGEST_RATIO


def test_work_for_clients_outside_the_cohort_would_be_seen() -> None:
    def sum_all(clients: int) -> float:
        return float(np.zeros(clients).sum())

    assert ratio_of(idle_run(FEW, sum_all), idle_run(MANY, sum_all)) > WORK_ON_ALL


def whole_run(clients: int, folder: Path) -> Generator[object]:
    """What `atoll run` does, on the smallest model there is, with nothing evaluated between first and last event."""
    table = {
        "rounds": 300,
        "data": {"dataset": "own_pool:pool", "partition": "iid", "clients": clients, "samples": 2},
        "model": {"name": "linear"},
        "local": {"steps": 1, "batch_size": 1, "lr": 0.01},
        "method": {"name": "fedavg", "fraction": 2 / clients},
        "run": {"executor": "serial", "evaluate_every": 1_000, "evaluate_samples": 10},
    }
    return run_events(Experiment(make_runs(table)[0]), folder)


@pytest.mark.more
def test_a_run_does_no_work_for_clients_outside_the_cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ModuleType("own_pool")
    own.pool = pool  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_pool", own)
    with ExitStack() as stack:
        few, many = (stack.enter_context(closing(whole_run(n, tmp_path / str(n)))) for n in (FEW, MANY))
        next(few), next(many)  # the row before training
        assert ratio_of(few, many) < LARGEST_RATIO


def blank_event(index: int, active: tuple[int, ...], starts: tuple[tuple[int, Mix], ...]) -> Event:
    nobody = np.empty(0, np.int64)
    began = (0.0,) * len(active)
    return Event(index, index, index + 1.0, active, began, nobody, nobody, np.empty(0), starts=starts)


def ready_by_looking_at_all(schedule: Schedule, done: int) -> list[int]:
    """The longest run of events from `done` on of which none needs a start that one not yet over gives."""
    ready: list[int] = []
    for event in schedule.events[done:]:
        given = {cluster for earlier in schedule.events[done : event.index] for cluster, _ in earlier.starts}
        if given & set(event.active):
            break
        ready.append(event.index)
    return ready


@given(st.lists(st.tuples(st.sets(st.integers(0, 3), min_size=1), st.sets(st.integers(0, 3))), min_size=1, max_size=12))
def test_the_ready_events_are_those_found_by_looking_at_all(rows: list[tuple[set[int], set[int]]]) -> None:
    events = [
        blank_event(i, tuple(sorted(active)), tuple((c, FROM_SERVER) for c in sorted(given)))
        for i, (active, given) in enumerate(rows)
    ]
    schedule = Schedule(tuple(events), clusters=4, rounds=len(events))
    for done in range(len(events) + 1):
        assert [event.index for event in schedule.ready(done)] == ready_by_looking_at_all(schedule, done)


def test_merges_that_events_share_are_written_once(tmp_path: Path) -> None:
    population = make_population(pool(), np.zeros((6, 1), np.int32))
    schedule = cycling(population, Clustering(np.arange(6) % 3, 3), rounds=4, order="fixed")
    write_schedule(tmp_path / "schedule.npz", schedule)
    with np.load(tmp_path / "schedule.npz", allow_pickle=False) as columns:
        merge, mixes = columns["merge"].tolist(), json.loads(columns["mixes"].tobytes())
    assert len(mixes) == 4  # the last event gives its own cluster a start
    for event, position in zip(schedule.events, merge, strict=True):
        assert mixes[position] == {
            "server": as_lists(event.server),
            "starts": [[c, as_lists(m)] for c, m in event.starts],
        }


def as_lists(mix: Mix | None) -> Any:
    return mix and {"server": mix.server, "published": [[c, weight] for c, weight in mix.published]}


def test_exact_counts_do_not_depend_on_how_many_clients_are_rounded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    shares, first = rng.dirichlet(np.ones(5), size=37), rng.integers(5, size=37)
    whole = exact_counts(shares, 50, first)
    monkeypatch.setattr("atoll.data.dealing.class_counts._CHUNK", 10)
    assert np.array_equal(exact_counts(shares, 50, first), whole)
