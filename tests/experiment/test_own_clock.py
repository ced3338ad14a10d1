"""A method of one's own is on the clock of the others, whether it asks for the clock or not."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.report.page.compared import warnings as told_on_the_page
from atoll.report.reading.groups import group_runs, make_panels
from atoll.report.tables.run_tables import rounds_to_target
from atoll.report.tables.spread import spread_over_seeds
from atoll.report.tables.spread_tables import target_table
from atoll.report.tables.writing import table_of
from atoll.schedules.events import Event
from atoll.support.errors import SettingWarning


def without_clock(population, rule, rounds, seed):  # type: ignore[no-untyped-def]
    return atoll.fedavg(population, rule, rounds, seed=seed)


def with_clock(population, rule, rounds, clock, seed):  # type: ignore[no-untyped-def]
    return atoll.fedavg(population, rule, rounds, clock=clock, seed=seed)


def pausing(population, rule, rounds, seed):  # type: ignore[no-untyped-def]
    """In the second round no cluster trains."""
    made = atoll.fedavg(population, rule, rounds, seed=seed)
    first, _, *rest = made.schedule.events
    none = np.zeros(0, np.int64)
    pause = Event(1, 1, 2.0, active=(), began=(), cohort=none, clusters=None, weights=np.zeros(0))
    return replace(made, schedule=replace(made.schedule, events=[first, pause, *rest]))


def hasty(population, rule, rounds, seed):  # type: ignore[no-untyped-def]
    made = atoll.fedavg(population, rule, rounds, seed=seed)
    events = [replace(event, seconds=event.seconds / 2, began=(event.began[0] / 2,)) for event in made.schedule.events]
    return replace(made, schedule=replace(made.schedule, events=events))


def seconds_of(method: Any, **settings: Any) -> list[float]:
    experiment = atoll.Experiment(method=method, rounds=3, data={"clients": 20}, **settings)
    return [event.seconds for event in experiment.method.schedule.events]


def test_a_method_without_clock_takes_the_seconds_of_one_with_it() -> None:
    assert seconds_of(without_clock) == seconds_of(with_clock) == seconds_of("fedavg") != [1.0, 2.0, 3.0]


def test_an_event_in_which_no_cluster_trains_takes_no_time() -> None:
    for faults in ({}, {"dropout": 0.3}):
        first, second, third = seconds_of(pausing, faults=faults)
        assert 0 < first == second < third


@pytest.mark.parametrize("settings", [{"faults": {"deadline_seconds": 2.0}}, {"faults": {"dropout": 0.3}}])
def test_faults_are_on_the_clock_too(settings: dict[str, Any]) -> None:
    assert seconds_of(without_clock, **settings) == seconds_of(with_clock, **settings)


def test_seconds_of_its_own_are_kept_and_warned_of() -> None:
    with pytest.warns(SettingWarning, match=r"hasty'.*takes no `clock`, so its virtual seconds are its own"):
        assert seconds_of(hasty) == [0.5, 1.0, 1.5]


def test_tables_and_pages_mark_seconds_of_its_own(tmp_path: Path) -> None:
    for seed in (0, 1):
        for name, method in (("hasty", hasty), ("with clock", with_clock)):
            short: dict[str, Any] = {
                "rounds": 2,
                "data": {"clients": 4},
                "local": {"steps": 2},
                "seed": seed,
                "label": name,
            }
            how = pytest.warns(SettingWarning) if method is hasty else nullcontext()
            with how:
                atoll.run(atoll.Experiment(method=method, **short), tmp_path / f"{name}-{seed}")
    runs = atoll.find_runs([tmp_path])
    note = "* Its virtual times are its method's own, not those of the clients' clock."
    rows = rounds_to_target(runs, [0.05])
    costs = target_table(spread_over_seeds(runs, [0.05]))
    for table in (table_of(rows).as_markdown(), table_of(rows).as_latex(), costs.as_markdown()):
        assert note.removeprefix("* ") in table
        assert re.search(r"hasty[^|&\n]*\*", table)
        assert not re.search(r"with clock[^|&\n]*\*", table)
    assert [text for text in told_on_the_page(make_panels(group_runs(runs))) if "own" in text] == [f"hasty: {note[2:]}"]
    (_, fair) = [run for run in runs if not run.own_seconds]
    assert "Its virtual" not in table_of(rounds_to_target([fair], [0.05])).as_markdown()


LONGER: dict[str, dict[str, Any]] = {
    "ditto": {},
    "apfl": {},
    "pfedme": {"inner_steps": 3},
    "perfedavg": {},
    "moon": {},
    "fedem": {"clusters": 2},
    "fedrc": {"clusters": 2},
    "local": {},
}


@pytest.mark.parametrize("name", LONGER)
def test_who_misses_a_deadline_is_judged_by_the_seconds_of_the_method(name: str) -> None:
    def made(**faults: float) -> list[Any]:
        wanted = {"name": name, "fraction": 0.05, **LONGER[name]}  # one client, whose seconds the event takes
        network = {"seconds_per_sample": [0.001, 0.1]}
        sections: dict[str, Any] = {"data": {"clients": 20}, "network": network, "faults": faults}
        return list(atoll.Experiment(method=wanted, rounds=20, **sections).method.schedule.events)

    whole = made()
    lengths = [event.seconds - max(event.began) for event in whole]
    deadline = sorted(lengths)[len(lengths) // 2]
    cut = made(deadline_seconds=deadline * (1 + 1e-9))
    late = [length > deadline * (1 + 1e-6) for length in lengths]
    assert 0 < sum(late) < len(late)
    assert [event.late for event in cut] == late
    assert [len(event.cohort) for event in cut] == [not each for each in late]
