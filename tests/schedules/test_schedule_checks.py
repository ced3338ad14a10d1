"""What a method of one's own may not put into its schedule, each in one sentence before anything is written."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll import Event, InputError, Method, Schedule, make_event
from atoll.schedules.events import Mix
from atoll.schedules.recorded import require_sound
from tests.methods.test_every_method import METHOD_CASES, experiment
from tests.tiers import thinned

AS_LIST: Any = [0, 1]
WRONG: dict[str, tuple[Callable[[Event], Event], str]] = {
    "list": (lambda event: replace(event, cohort=AS_LIST), "has a cohort or weights that are no NumPy arrays; atoll."),
    "order": (lambda event: replace(event, index=9), "is wrong (it is event 9, but event 1 must follow)"),
    "late": (lambda event: replace(event, round=3), "is of round 3; rounds are numbered from 0 to 2"),
    "back": (lambda event: replace(event, round=-1), "is of round -1; rounds are numbered from 0 to 2"),
    "stranger": (lambda event: replace(event, cohort=np.array([0, 4])), "trains client 4, but clients are numbered"),
    "short": (lambda event: replace(event, weights=np.ones(1)), "has 2 clients in its cohort, 1 weights, and clusters"),
    "negative": (lambda event: replace(event, weights=np.array([-1.0, 2.0])), "has the weights [-1.0, 2.0]; they must"),
    "nan": (lambda event: replace(event, weights=np.array([np.nan, 2.0])), "has the weights [nan, 2.0]; they must"),
    "nothing": (lambda event: replace(event, weights=np.array([0.0, 1.0])), "has the weights [0.0, 1.0]; they must"),
    "cluster": (lambda event: replace(event, clusters=np.array([0, 1])), "trains cluster 1, but clusters are numbered"),
    "past": (lambda event: replace(event, began=(-1.0,)), "begins at [-1.0] s and ends at 2 s; it must begin at 0 or"),
    "backwards": (lambda event: replace(event, began=(5.0,)), "begins at [5.0] s and ends at 2 s"),
    "earlier": (lambda event: replace(event, began=(0.0,), seconds=0.5), "is wrong (it ends before the previous eve"),
    "unknown": (lambda event: replace(event, staleness=()), "is wrong (active, began and staleness have different len"),
    "twice": (lambda event: replace(event, cohort=np.array([1, 1])), "is wrong (cohort must hold different clients in"),
    "idle": (lambda event: replace(event, active=(), began=(), staleness=()), "is wrong (a client's cluster is not ac"),
}


def schedule(change: Callable[[Event], Event] = lambda event: event) -> Schedule:
    events = [make_event(j, np.array([0, 1]), np.ones(2), float(j), float(j + 1)) for j in range(3)]
    events[1] = change(events[1])
    return Schedule(tuple(events), clusters=1, rounds=3)


def test_an_event_may_take_no_time() -> None:
    require_sound(schedule(lambda event: replace(event, began=(2.0,), seconds=2.0)), 4, "own")


@pytest.mark.parametrize(("change", "told"), WRONG.values(), ids=WRONG)
def test_an_unsound_event_is_refused(change: Callable[[Event], Event], told: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"mine: event 1 of its schedule {told}")):
        require_sound(schedule(change), 4, "mine")
    require_sound(schedule(), 4, "mine")


def test_rounds_do_not_go_back() -> None:
    first, second, third = schedule().events
    back = Schedule((first, second, replace(third, round=0)), clusters=1, rounds=3)
    with pytest.raises(InputError, match=r"event 2 .* is wrong \(it is of round 0, after one of round 1\)"):
        require_sound(back, 4, "mine")


def test_a_schedule_without_events_is_refused() -> None:
    with pytest.raises(InputError, match=r"^mine: its schedule has no events$"):
        require_sound(Schedule((), clusters=1, rounds=3), 4, "mine")


def test_a_server_s_model_needs_a_server() -> None:
    whole = schedule()
    with pytest.raises(InputError, match="event 0 of its schedule takes the server's model, but the schedule has no"):
        require_sound(replace(whole, has_server=False), 4, "mine")
    alone = [replace(event, server=None, starts=((0, Mix(published=((0, 1.0),))),)) for event in whole.events]
    require_sound(replace(whole, events=tuple(alone), has_server=False), 4, "mine")


def test_clusters_that_nobody_finds_are_refused(tmp_path: Path) -> None:
    def mine(rule: Any) -> Method:
        events = [make_event(0, np.array([0, 1]), np.ones(2), 0.0, 1.0, active=(0, 1))]
        return Method(Schedule(tuple(events), clusters=2, rounds=1), rule)

    with pytest.raises(InputError, match=r"an event of its schedule names no clusters, and no Method\.assign finds"):
        atoll.run(rounds=1, data={"clients": 4, "samples": 20}, method=mine, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_is_written_for_a_method_of_ones_own_with_such_a_schedule(tmp_path: Path) -> None:
    def mine(rule: Any) -> Method:
        return Method(schedule(WRONG["stranger"][0]), rule)

    with pytest.raises(InputError, match="event 1 of its schedule trains client 4, but clients"):
        atoll.run(rounds=3, data={"clients": 4, "samples": 20}, method=mine, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", thinned(METHOD_CASES))
def test_the_schedules_of_all_methods_are_sound(case: str) -> None:
    made = experiment(case)
    require_sound(made.method.schedule, len(made.population), case)
