"""What every cycling schedule must be."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import Clock, InputError, Mix, cycling, generator, make_event, make_population
from atoll.clustering.clustering import Clustering
from atoll.clustering.fedcluster_clusterings import random, timezone
from atoll.data import datasets
from atoll.data.population import Population
from atoll.methods.papers.fedcluster import Order
from atoll.schedules.events import FROM_SERVER
from atoll.schedules.timeline import DAY_SECONDS, cohort_size, draw_cohort

orders: st.SearchStrategy[Order] = st.sampled_from(["reshuffled", "fixed"])


def some_clients(clients: int) -> Population:
    return make_population(datasets.load("digits"), np.arange(clients)[:, None])


@given(
    clients=st.integers(1, 40),
    clusters=st.integers(1, 8),
    rounds=st.integers(1, 5),
    fraction=st.floats(0.01, 1),
    order=orders,
    seed=st.integers(0, 1000),
)
def test_every_round_visits_every_cluster_once_within_each_clients_budget(
    clients: int, clusters: int, rounds: int, fraction: float, order: Order, seed: int
) -> None:
    clusters = min(clusters, clients)
    population = some_clients(clients)
    clustering = random(population, clusters, generator(seed, "clustering"))
    schedule = cycling(population, clustering, rounds, fraction, order, seed=seed)
    assert len(schedule) == rounds * clusters
    for j in range(rounds):
        cycles = schedule.events[j * clusters : (j + 1) * clusters]
        assert sorted(event.active[0] for event in cycles) == list(range(clusters))
        assert all(event.round == j for event in cycles)
        trained = np.concatenate([event.cohort for event in cycles])
        assert len(np.unique(trained)) == len(trained)  # Assumption 1: one download and one upload a round
    assert schedule.max_updates_per_client_round() == 1
    for event, following in zip(schedule.events, schedule.events[1:], strict=False):
        cluster = event.active[0]
        assert set(event.cohort) <= set(clustering.members(cluster))
        assert len(event.cohort) == cohort_size(fraction, int(clustering.sizes[cluster]))
        assert event.server == Mix(published=((cluster, 1.0),))
        assert event.starts == ((following.active[0], FROM_SERVER),)
        assert event.seconds == following.began[0]
    assert [schedule.rounds_done(e) for e in range(len(schedule) + 1)] == [
        e // clusters for e in range(len(schedule) + 1)
    ]


def test_the_orders() -> None:
    population = some_clients(12)
    clustering = random(population, 6, generator(0, "clustering"))

    def turns(order: Order) -> list[tuple[int, ...]]:
        events = cycling(population, clustering, 8, order=order).events
        return [tuple(event.active[0] for event in events[j * 6 : (j + 1) * 6]) for j in range(8)]

    assert set(turns("fixed")) == {(0, 1, 2, 3, 4, 5)}
    assert len(set(turns("reshuffled"))) > 6


def test_cohorts_are_uniform_over_the_cluster() -> None:
    population = some_clients(10)
    schedule = cycling(population, random(population, 2, generator(0, "clustering")), 1000, 0.4)
    drawn = np.bincount(np.concatenate([event.cohort for event in schedule.events]), minlength=10)
    assert np.abs(drawn - 400).max() < 80  # 2 of 5 in each of 1000 rounds


def test_fedcluster_and_fedavg_cost_the_same_client_updates() -> None:
    population = some_clients(1000)
    ten = cycling(population, random(population, 10, generator(0, "clustering")), 3, 0.1)
    one = cycling(population, random(population, 1, generator(0, "clustering")), 3, 0.1)
    assert sum(e.client_updates for e in ten.events) == sum(e.client_updates for e in one.events) == 300
    assert sum(e.models_up for e in ten.events) == sum(e.models_down for e in one.events) == 300


def test_the_slowest_of_the_cohort_ends_the_cycle() -> None:
    population = some_clients(3)
    clock = Clock(np.array([1.0, 5.0, 2.0]), np.array([0.5, 0.5, 4.0]))
    schedule = cycling(population, Clustering(np.array([0, 0, 1]), 2), 2, order="fixed", clock=clock)
    assert [event.seconds for event in schedule.events] == [5.5, 11.5, 17.0, 23.0]


def test_who_is_not_drawn_keeps_nobody_waiting() -> None:
    clock = Clock(np.array([1.0, 5.0, 2.0]), np.array([0.5, 0.5, 4.0]))
    schedule = cycling(some_clients(3), Clustering(np.array([0, 0, 0]), 1), 6, 0.3, clock=clock)
    took = [event.seconds - event.began[0] for event in schedule.events]
    assert took == [[1.5, 5.5, 6.0][int(event.cohort[0])] for event in schedule.events]
    assert len(set(took)) > 1


def test_times_of_day() -> None:
    population = some_clients(24)
    clustering = timezone(
        make_population(population.data, np.arange(24)[:, None], {"utc_offset": np.arange(-11.5, 12.5)}),
        4,
        generator(0, "clustering"),
    )
    clock = Clock(np.full(24, 60.0), np.zeros(24))
    fixed = cycling(population, clustering, 3, order="fixed", clock=clock)
    for event in fixed.events:
        assert event.began[0] % DAY_SECONDS == (event.active[0] + 0.5) * 6 * 3600
    assert [int(event.began[0] // DAY_SECONDS) for event in fixed.events] == [0] * 4 + [1] * 4 + [2] * 4
    shuffled = cycling(population, clustering, 3, clock=clock)
    began = [event.began[0] for event in shuffled.events]
    assert began == sorted(began)
    assert began[-1] > fixed.events[-1].began[0]  # out of order, a round takes more than a day
    long = cycling(population, clustering, 1, order="fixed", clock=Clock(np.full(24, 7 * 3600.0), np.zeros(24)))
    assert [int(event.began[0] // DAY_SECONDS) for event in long.events] == [0, 1, 2, 3]  # each overruns the next slot


@given(seed=st.integers(0, 1000))
def test_equal_seeds_give_equal_tables(seed: int) -> None:
    population = some_clients(20)
    clustering = random(population, 4, generator(seed, "clustering"))
    tables = [cycling(population, clustering, 3, 0.5, seed=s) for s in (seed, seed, seed + 1)]
    texts = [[(e.active, e.cohort.tolist(), e.seconds) for e in table.events] for table in tables]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"fraction": 0.0}, r"method\.fraction = 0\.0"),
        ({"fraction": 1.5}, r"method\.fraction = 1\.5"),
        ({"order": "sorted"}, r"method\.order = 'sorted'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    population = some_clients(4)
    with pytest.raises(InputError, match=message):
        cycling(population, random(population, 2, generator(0, "c")), **({"rounds": 1} | arguments))  # type: ignore[arg-type]


def test_an_empty_cluster_is_refused() -> None:
    with pytest.raises(InputError, match="cluster 1 has no clients"):
        cycling(some_clients(2), Clustering(np.array([0, 2]), 3), 1)


@given(clusters=st.integers(1, 4), rounds=st.integers(1, 5), seconds=st.floats(1, 30))
def test_a_schedule_until_a_virtual_time(clusters: int, rounds: int, seconds: float) -> None:
    population = some_clients(8)
    whole = cycling(population, random(population, clusters, generator(0, "clustering")), rounds)  # 1 s a cycle
    part = whole.until(seconds)
    assert part.events == whole.events[: int(seconds)]
    assert part.rounds == part.rounds_done(len(part)) == min(int(seconds), len(whole)) // clusters
    with pytest.raises(InputError, match=r"run.virtual_seconds = 0.5: the first event ends after 1 s"):
        whole.until(0.5)


@given(clusters=st.integers(1, 4), rounds=st.integers(1, 5), most=st.integers(1, 60))
def test_a_schedule_until_so_many_client_updates(clusters: int, rounds: int, most: int) -> None:
    population = some_clients(8)
    whole = cycling(population, random(population, clusters, generator(0, "clustering")), rounds)
    first = whole.events[0].client_updates
    if most < first:
        with pytest.raises(InputError, match=rf"run.client_updates = {most}: the first event has {first}"):
            whole.until(client_updates=most)
        return
    part = whole.until(client_updates=most)
    done = [sum(event.client_updates for event in whole.events[:count]) for count in range(len(whole) + 1)]
    assert done[len(part)] <= most
    assert len(part) == len(whole) or done[len(part) + 1] > most
    assert part.until(seconds=2.0, client_updates=most).events == whole.events[: min(2, len(part))]


def test_a_cohort_is_ascending_and_everybody_is_drawn_as_often() -> None:
    members, count = np.arange(3, 23), np.zeros(23)
    for seed in range(400):
        cohort = draw_cohort(members, 5, generator(seed, "cohort"))
        assert (np.diff(cohort) > 0).all()
        count[cohort] += 1
    assert count.sum() == 2000
    assert not count[:3].any()
    assert 70 < count[3:].min() <= count[3:].max() < 130


@pytest.mark.parametrize(
    ("changes", "updates"),
    [({}, 5), ({"models_up": 2}, 2), ({"models_up": 0}, 5), ({"models_up": 2, "regroups": True}, 5)],
)
def test_who_only_measures_losses_makes_no_update(changes: dict[str, Any], updates: int) -> None:
    assert make_event(0, np.arange(5), np.ones(5), 0.0, 1.0, **changes).client_updates == updates
