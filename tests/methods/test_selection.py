"""Who is in a cohort: each rule against a loop by hand, what it costs, and what is refused."""

from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import atoll
from atoll import (
    Experiment,
    InputError,
    Method,
    Schedule,
    Serial,
    Settings,
    fedavg,
    init,
    make_event,
    read_model,
    scaffold,
    train,
)
from atoll.methods.papers.ditto import ditto
from atoll.methods.papers.ifca import ifca
from atoll.methods.selection import Selection, by_size, by_tiers, power_of_choice, reselect, round_robin
from atoll.settings.validation import validate
from atoll.support.arrays import Floats, Ids
from tests.methods.twins import CLOCK, POPULATION, RULE, START, descend, make, run, server, sizes
from tests.problems import as_vector, linear_module

SECONDS = CLOCK.seconds_of(np.arange(8))


def select(selection: Selection, rounds: int = 12, fraction: float = 0.25) -> Method:
    return reselect(fedavg(POPULATION, RULE, rounds, fraction, CLOCK), selection, POPULATION, CLOCK)


def by_hand(method: Method) -> list[Floats]:
    """Return the models of FedAvg with the cohorts of the schedule."""
    models = [START]
    for event in method.schedule.events:
        ends = [descend(event, int(k), models[-1]) for k in event.cohort]
        models.append(np.average(ends, axis=0, weights=sizes(event)))
    return models[1:]


@pytest.mark.parametrize(
    "selection", [by_size(POPULATION, 3), round_robin(POPULATION), by_tiers(CLOCK, 3, 4)], ids=["size", "turn", "tiers"]
)
def test_it_is_fedavg_with_other_cohorts(selection: Selection) -> None:
    method = select(selection)
    now = 0.0
    for event in method.schedule.events:
        assert len(event.cohort) == event.models_down == event.models_up == 2
        assert event.began == (now,)
        now += SECONDS[event.cohort].max()
        assert event.seconds == pytest.approx(now)
    for state, expected in zip(run(method), by_hand(method), strict=True):
        np.testing.assert_allclose(server(state), expected, rtol=0, atol=1e-10)


def test_clients_take_turns() -> None:
    cohorts = [event.cohort.tolist() for event in select(round_robin(POPULATION), 4, 0.375).schedule.events]
    assert cohorts == [[0, 1, 2], [3, 4, 5], [0, 6, 7], [1, 2, 3]]


def test_tiers_are_of_one_speed() -> None:
    order = np.argsort(SECONDS, kind="stable")
    tiers = [set(own.tolist()) for own in np.array_split(order, 4)]
    seen = [
        [set(event.cohort.tolist()) <= tier for tier in tiers].index(True)
        for event in select(by_tiers(CLOCK, 3, 4), 40).schedule.events
    ]
    assert set(seen) == {0, 1, 2, 3}


def test_tiers_are_drawn_and_do_not_take_turns() -> None:
    chosen = by_tiers(atoll.Clock(np.arange(1.0, 5.0), np.zeros(4)), 0, 4)
    drawn = [int(chosen.draw(index, 1)[0]) for index in range(40)]
    assert set(drawn) == {0, 1, 2, 3}
    assert any(one == other for one, other in pairwise(drawn))


def test_larger_clients_come_more_often() -> None:
    counts = np.zeros(8)
    for index in range(4000):
        counts[by_size(POPULATION, 0).draw(index, 1)] += 1
    np.testing.assert_allclose(counts / 4000, POPULATION.sizes / POPULATION.sizes.sum(), atol=0.02)


def loss(client: int, w: Floats) -> float:
    rows = POPULATION.samples(client)
    x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
    return float(np.mean((x @ w - y) ** 2) / 2)


def test_power_of_choice_is_the_loop_by_hand() -> None:
    """Of five candidates the two with the greatest losses train; all five are sent the model."""
    method = select(power_of_choice(POPULATION, 3, 5))
    w = START
    states = run(method)
    for state, event in zip(states, method.schedule.events, strict=True):
        assert (len(event.cohort), event.models_down, event.models_up) == (5, 5, 2)
        chosen = sorted(event.cohort.tolist(), key=lambda k: -loss(k, w))[:2]
        ends = [descend(event, k, w) for k in chosen]
        w = np.average(ends, axis=0, weights=POPULATION.sizes[chosen])
        np.testing.assert_allclose(server(state), w, rtol=0, atol=1e-10)


def test_those_not_chosen_are_no_losses() -> None:
    """The event that happened has the cohort that trained; nobody was dropped, and the bytes are as planned."""
    method = select(power_of_choice(POPULATION, 3, 5), 3)
    for step in train(method, Serial(make(method)), init(method, read_model(linear_module()))):
        assert (len(step.event.cohort), step.event.dropped) == (2, 0)
        assert (step.event.models_down, step.event.models_up) == (5, 2)


@pytest.mark.parametrize(("by_loss", "drawn", "training"), [(False, 1, 1), (False, 5, 5), (True, 1, 1), (True, 5, 2)])
def test_what_is_sent_follows_the_number_drawn(by_loss: bool, drawn: int, training: int) -> None:
    event = select(Selection(lambda index, size: np.arange(drawn), by_loss)).schedule.events[0]
    assert (len(event.cohort), event.models_down, event.models_up) == (drawn, drawn, training)
    assert event.client_updates == training


def of_cohorts(*sizes: int, **fields: Any) -> Method:
    """A user's own method, whose cohorts differ."""
    cohorts = [np.arange(size) for size in sizes]
    events = (make_event(i, own, np.ones(len(own)), i, i + 1, **fields) for i, own in enumerate(cohorts))
    return Method(Schedule(tuple(events), 1, len(sizes)), RULE)


def test_as_many_train_by_loss_as_each_cohort_has() -> None:
    method = reselect(of_cohorts(1, 4), power_of_choice(POPULATION, 3, 5), POPULATION, None)
    steps = train(method, Serial(make(method)), init(method, read_model(linear_module())))
    assert [len(step.event.cohort) for step in steps] == [1, 4]


def test_events_without_clients_or_of_several_rounds_are_refused() -> None:
    first, last = of_cohorts(2, 2).schedule.events[0], of_cohorts(2, 2, intra_rounds=3).schedule.events[1]
    several = Method(Schedule((first, last), 1, 2), RULE)
    for method in (several, of_cohorts(0, 2), of_cohorts(2, 0)):
        with pytest.raises(InputError, match=r"method\.select: needs a method with one model and one cohort"):
            reselect(method, round_robin(POPULATION), POPULATION, None)


def test_methods_that_count_all_alike_still_do() -> None:
    method = reselect(scaffold(POPULATION, RULE, 6, fraction=0.5), round_robin(POPULATION), POPULATION, None)
    assert all((event.weights == 1).all() for event in method.schedule.events)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (ifca(POPULATION, RULE, 3, 2, fraction=0.5), "needs a method with one model and one cohort"),
        (ditto(POPULATION, RULE, 3, fraction=0.5, clock=CLOCK), "times clients differently from the network"),
    ],
)
def test_other_methods_are_refused(method: Method, message: str) -> None:
    with pytest.raises(InputError, match=f"method.select: .*{message}"):
        reselect(method, round_robin(POPULATION), POPULATION, CLOCK)


@pytest.mark.parametrize(
    ("draw", "told"),
    [
        (lambda index, size: int("no"), "ValueError: invalid literal .*, test_selection.py line"),
        (lambda index, size: [[1], [1, 2]], "ValueError: setting an array element"),
        (lambda index: [0], "TypeError: .*takes 1 positional argument"),
    ],
)
def test_a_draw_that_fails_is_one_sentence(draw: Any, told: str) -> None:
    with pytest.raises(InputError, match=rf"^method\.select: drawing the clients of round 0 failed \({told}"):
        select(Selection(draw))


@pytest.mark.parametrize("drawn", [[1, 1], [2, 1], [-1, 2], [7, 8], [], [0.5]])
def test_wrong_draws_are_refused(drawn: Any) -> None:
    with pytest.raises(InputError, match="must draw distinct clients from 0 to 7, ascending"):
        select(Selection(lambda index, size: np.asarray(drawn)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"select": "sizes"}, "method.select = 'sizes'"),
        ({"select": "tiers", "select_tiers": 41}, "method.select_tiers = 41: must be at least 1 and at most"),
        ({"select": "tiers", "select_tiers": 20}, "leaves 2 clients in a tier, but a cohort has 4"),
        ({"select": "power-of-choice", "candidates": 41}, "method.candidates = 41: must be at least 1 and at most"),
        ({"select": "power-of-choice", "candidates": 3}, "must be at least the size of a cohort, 4"),
        ({"select": "round-robin", "name": "ifca"}, "needs a method with one model"),
        ({"select": "builtins:list"}, "must return an atoll.Selection"),
        ({"select": "gc:enable"}, "must return an atoll.Selection, not nothing"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _ = Experiment(made(settings)).method


def test_tiers_need_a_method_with_a_clock() -> None:
    with pytest.raises(InputError, match=r"^method\.select = 'tiers': needs a method with a clock"):
        _ = Experiment(rounds=20, method={"name": "hierfavg", "intra_rounds": 1, "select": "tiers"}).method


def test_a_method_with_a_clustering_is_refused_with_one_cluster_too() -> None:
    settings = made({"select": "round-robin", "name": "fedcluster"}, clustering={"clusters": 1})
    with pytest.raises(InputError, match=r"method\.select = 'round-robin': cannot be used with .* 'fedcluster'"):
        _ = Experiment(settings).method


def test_ditto_selects_on_its_own_clock() -> None:
    ours, theirs = (Experiment(made({"select": select, "name": "ditto"})).method for select in ("size", "uniform"))
    assert ours.schedule.events[0].seconds == theirs.schedule.events[0].seconds


@pytest.mark.parametrize("sections", [{"run": {"executor": "fleet"}}, {"faults": {"max_update_norm": 9.0}}])
def test_losses_go_with_checks_of_results(sections: dict[str, Any]) -> None:
    assert Experiment(made({"select": "power-of-choice"}, **sections)).method.screening is not None


def test_losses_do_not_go_with_faults() -> None:
    settings = made({"select": "power-of-choice"}, faults={"dropout": 0.1})
    with pytest.raises(InputError, match=r"method\.select = 'power-of-choice': cannot be used with \[faults\]"):
        _ = Experiment(settings).method


def made(method: dict[str, Any], **sections: Any) -> Settings:
    return validate(
        {
            "name": "selected",
            "rounds": 3,
            "data": {"clients": 40, "samples": 10},
            "method": {"name": "fedavg", "fraction": 0.1, **method},
            **sections,
        }
    )


def test_uniform_is_the_methods_own() -> None:
    plain, told = (Experiment(made(each)).method.schedule.events for each in ({}, {"select": "uniform"}))
    assert all(np.array_equal(a.cohort, b.cohort) for a, b in zip(plain, told, strict=True))


def evens(population: Any) -> Selection:
    """A user's own rule."""

    def draw(index: int, size: int) -> Ids:
        return 2 * np.arange(size)

    return Selection(draw)


def test_a_users_own_is_called() -> None:
    method = Experiment(made({"select": f"{__name__}:evens"})).method
    assert all(event.cohort.tolist() == [0, 2, 4, 6] for event in method.schedule.events)


@pytest.mark.parametrize("executor", ["cores", "stacked"])
def test_executors_agree(executor: str) -> None:
    """The same clients are chosen; `cores` to the bit."""
    wanted = {"select": "power-of-choice", "candidates": 8}
    models = []
    for name in ("serial", executor):
        experiment = Experiment(made(wanted, run={"executor": name}))
        method = experiment.method
        with closing(experiment.execution.make_executor()) as using:
            *_, step = train(method, using, init(method, *experiment.training.initial_models()))
        models.append((step.event.cohort.tolist(), as_vector(step.state.server or {})))
    assert models[0][0] == models[1][0]
    np.testing.assert_allclose(models[0][1], models[1][1], rtol=0, atol=0 if executor == "cores" else 1e-5)


@pytest.mark.parametrize("select", ["size", "round-robin", "tiers"])
def test_one_client_that_holds_all_data_is_not_selected(select: str) -> None:
    told = f"method.select = '{select}': cannot be used with method.name = 'centralized', whose one client holds all"
    with pytest.raises(InputError, match=told):
        _ = Experiment(method={"name": "centralized", "select": select}).method
