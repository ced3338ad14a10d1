"""A method of one's own is on the clock of the others, whether it asks for the clock or not."""

from dataclasses import replace
from typing import Any

import pytest

import atoll
from atoll.support.errors import SettingWarning


def without_clock(population, rule, rounds, seed):  # type: ignore[no-untyped-def]
    return atoll.fedavg(population, rule, rounds, seed=seed)


def with_clock(population, rule, rounds, clock, seed):  # type: ignore[no-untyped-def]
    return atoll.fedavg(population, rule, rounds, clock=clock, seed=seed)


def hasty(population, rule, rounds, seed):  # type: ignore[no-untyped-def]
    made = atoll.fedavg(population, rule, rounds, seed=seed)
    events = [replace(event, seconds=event.seconds / 2, began=(event.began[0] / 2,)) for event in made.schedule.events]
    return replace(made, schedule=replace(made.schedule, events=events))


def seconds_of(method: Any, **settings: Any) -> list[float]:
    experiment = atoll.Experiment(method=method, rounds=3, data={"clients": 20}, **settings)
    return [event.seconds for event in experiment.method.schedule.events]


def test_a_method_without_clock_takes_the_seconds_of_one_with_it() -> None:
    assert seconds_of(without_clock) == seconds_of(with_clock) == seconds_of("fedavg") != [1.0, 2.0, 3.0]


@pytest.mark.parametrize("settings", [{"faults": {"deadline_seconds": 2.0}}, {"faults": {"dropout": 0.3}}])
def test_faults_are_on_the_clock_too(settings: dict[str, Any]) -> None:
    assert seconds_of(without_clock, **settings) == seconds_of(with_clock, **settings)


def test_seconds_of_its_own_are_kept_and_warned_of() -> None:
    with pytest.warns(SettingWarning, match=r"hasty'.*takes no `clock`, so its virtual seconds are its own"):
        assert seconds_of(hasty) == [0.5, 1.0, 1.5]
