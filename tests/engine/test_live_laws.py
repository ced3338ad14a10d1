"""What live runs do is what they say happened; with everybody there and in turn, it is what was planned."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll import Event, Experiment, Schedule, State, Step, init, make_runs, train
from atoll.engine.cohorts import Cohort
from atoll.engine.live_schedule import LiveRun, follow
from atoll.local.models import Model
from atoll.schedules.recorded import head_of, line_of, read_lines
from atoll.support.arrays import Ids
from tests.losing import Lose, Losing, nobody, some
from tests.tiers import thinned

BASE = {
    "rounds": 4,
    "data": {"clients": 8, "partition": "dirichlet", "alpha": 1.0},
    "model": {"name": "linear"},
    "local": {"lr": 0.2, "steps": 2, "batch_size": 4, "lr_decay": 0.9},
    "clustering": {"clusters": 3},
    "method": {"intra_rounds": 2, "fraction": 1.0},
    "network": {"bandwidth_hz": 1e4},
    "run": {"executor": "serial"},
}
HIERARCHICAL = ("method.name=hierarchical", "rounds=24")
ROTATED = ("data.partition=rotated", "data.samples=12", "data.alpha=", "data.rotations=2", "method.clusters=2")
METHODS = {
    "fedavg": ("method.name=fedavg", "method.fraction=0.5"),
    "fedcluster": ("method.name=fedcluster",),
    "local": ("method.name=local",),
    "censyn": (*HIERARCHICAL, "method.pattern=censyn"),
    "cenasy": (*HIERARCHICAL, "method.pattern=cenasy"),
    "decsyn": (*HIERARCHICAL, "method.pattern=decsyn"),
    "decasy": (*HIERARCHICAL, "method.pattern=decasy"),
    "cfl-mgd": (*ROTATED, "method.name=cfl-mgd"),
    "cfl-mgd gradients": (*ROTATED, "method.name=cfl-mgd", "method.option=gradients", "local.steps=1"),
    "ifca, shared layers": (*ROTATED, "method.name=ifca", "model.name=mlp", "method.shared_layers=1"),
}
EXPERIMENTS = {name: Experiment(make_runs(BASE, changes=changes)[0]) for name, changes in METHODS.items()}


@contextmanager
def losing(experiment: Experiment, lose: Lose = nobody, in_turns: bool = False) -> Iterator[Losing]:
    with closing(Losing(experiment.execution.make_executor(), lose, in_turns)) as executor:
        yield executor


def live(
    experiment: Experiment, executor: Losing, state: State | None = None, past: Sequence[Event] = ()
) -> list[Step]:
    method = experiment.method
    course = LiveRun(method, executor.clock, pause_seconds=0.0)
    steps = []
    with closing(follow(course, executor, state or init(method, *experiment.training.initial_models()), past)) as going:
        for step in going:
            steps.append(step)
            executor.let(step.state.events_done)
    return steps


def simulated(experiment: Experiment, schedule: Schedule | None = None) -> list[Step]:
    method = experiment.method if schedule is None else replace(experiment.method, schedule=schedule)
    return list(
        train(method, experiment.execution.make_executor(), init(method, *experiment.training.initial_models()))
    )


def read_again(experiment: Experiment, events: Sequence[Event]) -> Schedule:
    """What a file of these events says."""
    planned = experiment.method.schedule
    lines = [head_of(planned), *(line_of(event, planned.rounds_done(event.index + 1)) for event in events)]
    return read_lines([json.dumps(line).encode() for line in lines], "what happened")


def as_told(event: Event, *but: str) -> dict[str, object]:
    return {name: value for name, value in line_of(event, 0).items() if name not in but}


def assert_same(first: Model | None, second: Model | None) -> None:
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.keys() == second.keys()
        for name, tensor in first.items():
            assert torch.equal(tensor, second[name]), name


def assert_same_steps(found: Sequence[Step], expected: Sequence[Step]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.loss == other.loss
        assert one.clusters.tolist() == other.clusters.tolist()
        assert_same(one.state.server, other.state.server)
        for ours, theirs in ((one.state.starts, other.state.starts), (one.state.published, other.state.published)):
            for first, second in zip(ours, theirs, strict=True):
                assert_same(first, second)


def assert_told_truly(events: Sequence[Event]) -> None:
    """Staleness is what it was, and every work drew under a number of its own, though three went on at a time."""
    given = dict.fromkeys(range(3), -1)
    for event in events:
        (cluster,) = event.active
        assert event.staleness == (event.index - 1 - given[cluster],)
        number, _ = event.drawn_as or (event.index, event.round)
        assert number == (3 + given[cluster] if given[cluster] >= 0 else cluster)
        given[cluster] = event.index


@pytest.mark.parametrize("method", METHODS)
def test_with_everybody_there_and_in_turn_the_plan_happens(method: str) -> None:
    """An asynchronous plan takes turns if all clusters are equally fast, as these are made."""
    experiment = EXPERIMENTS[method]
    if experiment.method.arrivals is not None:
        plans = [
            replace(plan, works={j: replace(work, seconds=1.0) for j, work in plan.works.items()})
            for plan in experiment.method.arrivals.in_force
        ]
        turns = replace(experiment.method.arrivals, in_force=plans)
        order = np.arange(len(experiment.method.schedule)) % 3
        assert set(turns.in_force[0].works) == {0, 1, 2}, "no cluster is empty"
        downloaded = np.full(3, -1)
        planned = [
            turns.event(i, turns.end(i, int(j), turns.in_force[i].works[int(j)], i // 3, i // 3 + 1), downloaded)
            for i, j in enumerate(order)
        ]
    else:
        planned = list(experiment.method.schedule.events)
    with losing(experiment, in_turns=True) as executor:
        steps = live(experiment, executor)
    found = [as_told(step.event, "seconds", "began") for step in steps]
    assert found == [as_told(event, "seconds", "began") for event in planned]
    if experiment.method.arrivals is None:
        lasted = planned[0].intra_rounds  # a second each
        assert [step.event.seconds for step in steps] == [lasted * (i + 1) for i in range(len(steps))]
        assert [{*step.event.began} for step in steps] == [{lasted * i} for i in range(len(steps))]
    expected = simulated(experiment, replace(experiment.method.schedule, events=tuple(planned)))
    assert_same_steps(steps, expected)


@pytest.mark.parametrize("method", thinned(METHODS, 1))
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.1, 0.5, 0.9]))
def test_what_happened_is_replayed_to_the_same_bits(method: str, seed: int, share: float) -> None:
    experiment = EXPERIMENTS[method]
    with losing(experiment, some(np.random.default_rng(seed), share)) as executor:
        steps = live(experiment, executor)
    schedule = read_again(experiment, [step.event for step in steps])
    assert len(schedule) == len(experiment.method.schedule)
    assert_same_steps(steps, simulated(experiment, schedule))
    if experiment.method.arrivals is not None:
        assert_told_truly(schedule.events)


def test_what_is_lost_of_a_method_that_exchanges_no_models_is_counted_without_negative_models() -> None:
    with losing(EXPERIMENTS["local"], lambda cohort: cohort.clients[:2]) as executor:
        steps = live(EXPERIMENTS["local"], executor)
    assert [(step.event.late, step.event.models_up, step.event.models_down) for step in steps] == [(2, 0, 0)] * 4


def test_by_arrival_too_only_who_answers_sends_a_model_up() -> None:
    experiment = EXPERIMENTS["cenasy"]
    with losing(experiment, lambda cohort: cohort.clients[: len(cohort.clients) // 2]) as executor:
        events = [step.event for step in live(experiment, executor)]
    assert sum(event.late for event in events) > 5
    for event in events:
        asked = len(event.cohort) * event.intra_rounds
        assert event.client_updates == asked - event.late
        assert (event.models_down, event.models_up) == (asked + 1, event.client_updates + 1)  # one is the aggregator's


def test_models_that_were_sent_in_vain_are_counted_with_the_next_event() -> None:
    """Everybody is late at first, in both rounds of a cluster's work, and then nobody is."""
    experiment, sent = EXPERIMENTS["cenasy"], list[int]()

    def late_at_first(cohort: Cohort) -> Ids:
        late = cohort.clients[: len(cohort.clients) * (len(sent) < 6)]
        sent.append(len(cohort.clients))
        return late

    with losing(experiment, late_at_first, in_turns=True) as executor:
        events = [step.event for step in live(experiment, executor)]
    needed = sum(len(event.cohort) * event.intra_rounds + 1 for event in events)  # one is the aggregator's
    assert sum(event.models_down for event in events) == needed + sum(sent[:6])
    assert sum(event.models_up for event in events) == needed


def test_candidates_that_report_no_loss_are_missed_only_if_too_few_are_left() -> None:
    changes = ("method.name=fedavg", "method.fraction=0.5", "method.select=power-of-choice", "method.candidates=7")
    experiment = Experiment(make_runs(BASE, changes=changes)[0])
    for silent, trained in ((0, 4), (3, 4), (5, 2)):

        def say_nothing(asked: Cohort, silent: int = silent) -> Ids:
            return asked.clients[: silent * (asked.event < 0)]

        with losing(experiment, say_nothing) as executor:
            for step in live(experiment, executor):
                event = step.event
                assert (event.dropped, len(event.cohort)) == (silent, trained)
                assert event.models_up == event.client_updates == trained


@pytest.mark.parametrize("method", thinned(METHODS, 1))
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), stop=st.integers(1, 3))
def test_a_run_that_was_stopped_goes_on(method: str, seed: int, stop: int) -> None:
    """Synchronous ones to the same bits, if the same clients are lost; of others a replay gives the same bits."""
    experiment = EXPERIMENTS[method]

    def lose(cohort: Cohort) -> Ids:
        rng = np.random.default_rng([seed, cohort.event + 1, cohort.round, cohort.repeat, cohort.cluster])
        lost = rng.random(len(cohort.clients)) < 0.3
        return cohort.clients[lost & (np.arange(len(lost)) > 0)]  # one answers, or it would be tried for ever

    with losing(experiment, lose) as executor:
        whole = live(experiment, executor)
    past = whole[:stop]
    with losing(experiment, lose) as executor:
        rest = live(experiment, executor, past[-1].state, [step.event for step in past])
    steps = [*past, *rest]
    if experiment.method.arrivals is None:
        assert_same_steps(steps, whole)
    else:
        assert_told_truly([step.event for step in steps])
    events = [replace(step.event, seconds=float(i), began=(0.0,)) for i, step in enumerate(steps)]
    events = [replace(event, began=(0.0,) * len(event.active)) for event in events]
    assert_same_steps(steps, simulated(experiment, read_again(experiment, events)))
