"""What every clustering must be, and that the even one is the evenest."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll import InputError, generator, make_population
from atoll.clustering.clustering import Clustering
from atoll.clustering.describe import describe
from atoll.clustering.fedcluster_clusterings import availability, even_slots, major_class, random, timezone
from atoll.data import datasets
from atoll.data.client_columns import slot_table
from atoll.data.dataset import Dataset
from atoll.data.dealing.partition import major_class as major_class_partition
from atoll.data.population import Population
from tests.tiers import part_of

DIGITS = datasets.load("digits")
seeds = st.integers(0, 2**32)


def some_clients(clients: int, **attributes: object) -> Population:
    return make_population(DIGITS, np.arange(clients)[:, None], attributes)  # type: ignore[arg-type]


@given(clients=st.integers(1, 60), clusters=st.integers(1, 12), seed=seeds)
def test_random_puts_everyone_somewhere_in_even_sizes(clients: int, clusters: int, seed: int) -> None:
    made = random(some_clients(clients), clusters, generator(seed, "clustering"))
    assert made.sizes.sum() == clients
    assert made.sizes.max() - made.sizes.min() <= 1
    assert sorted(k for c in range(clusters) for k in made.members(c)) == list(range(clients))


def test_random_is_uniform() -> None:
    labels = [random(some_clients(4), 2, generator(seed, "clustering")).labels for seed in range(600)]
    apart = np.mean([pair[0] != pair[1] for pair in labels])
    assert apart == pytest.approx(2 / 3, abs=0.07)  # of client 0's three peers two are in the other cluster


@pytest.mark.parametrize("hour", [0.0, 22.5])
def test_timezone_groups_by_the_utc_time_of_the_local_hour(hour: float) -> None:
    offsets = np.array([-11.0, -5.0, 0.0, 1.0, 5.5, 12.75])
    made = timezone(some_clients(6, utc_offset=offsets), 4, generator(0, "clustering"), hour)
    for client, offset in enumerate(offsets):
        begin = made.labels[client] * 6
        assert begin <= (hour - offset) % 24 < begin + 6
    assert made.hours == (3.0, 9.0, 15.0, 21.0)


def test_timezone_reads_longitudes_as_fifteen_degrees_an_hour() -> None:
    longitudes = np.array([-170.0, -75.0, 0.0, 139.0])
    by_longitude = timezone(some_clients(4, longitude=longitudes), 8, generator(0, "clustering"))
    by_offset = timezone(some_clients(4, utc_offset=longitudes / 15), 8, generator(0, "clustering"))
    assert by_longitude.labels.tolist() == by_offset.labels.tolist()


@pytest.mark.parametrize("name", ["utc_offset", "longitude"])
def test_timezone_refuses_a_client_whose_place_is_unknown(name: str) -> None:
    with pytest.raises(InputError, match=rf"'timezone': client 1 needs a finite {name}"):
        timezone(some_clients(2, **{name: np.array([1.0, np.nan])}), 4, generator(0, "clustering"))


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6))
@settings(max_examples=part_of(200))
def test_even_slots_is_the_evenest_of_all_choices(table: list[list[bool]]) -> None:
    slots = np.array(table)
    labels = even_slots(slots)
    assert all(slots[k, s] if s >= 0 else not slots[k].any() for k, s in enumerate(labels))
    able = [np.flatnonzero(row) for row in slots if row.any()]
    loads = np.bincount(labels[labels >= 0], minlength=3)
    best = (
        min((np.bincount(choice, minlength=3) for choice in product(*able)), key=lambda n: (n**2).sum())
        if able
        else loads
    )
    assert (loads**2).sum() == (best**2).sum()
    assert loads.max() == best.max()


def test_even_slots_shifts_along_paths() -> None:
    # Slots a-b-c: the greedy start crowds a; only a chain a -> b -> c evens it out.
    slots = slot_table([[0], [0], [0, 1], [0, 1], [1, 2], [1, 2]])
    assert sorted(np.bincount(even_slots(slots)).tolist()) == [2, 2, 2]


def test_availability_leaves_out_and_reports_clients_without_a_slot() -> None:
    made = availability(some_clients(4, slots=slot_table([[0], [], [1], [0, 1]])), 2, generator(0, "clustering"))
    assert made.left_out.tolist() == [1]
    assert made.sizes.sum() == 3


def test_availability_draws_slots_where_none_are_known() -> None:
    made = availability(some_clients(100), 8, generator(0, "clustering"), 2)
    assert made.sizes.max() - made.sizes.min() <= 1
    with pytest.raises(InputError, match="slots_per_client = 9"):
        availability(some_clients(10), 8, generator(0, "clustering"), 9)
    with pytest.raises(InputError, match="lists slot 2"):
        availability(some_clients(1, slots=slot_table([[2]])), 2, generator(0, "clustering"))


def test_availability_counts_only_slots_that_a_client_lists() -> None:
    wide = np.array([[True, False, False], [False, True, False]])
    assert availability(some_clients(2, slots=wide), 2, generator(0, "clustering")).labels.tolist() == [0, 1]
    with pytest.raises(InputError, match=r"slots must be \[clients, slots\], not \(2,\)"):
        availability(some_clients(2, slots=np.ones(2, bool)), 2, generator(0, "clustering"))


def with_major_classes(clients: int) -> Population:
    parts = major_class_partition(DIGITS.targets, clients, 10, generator(0, "partition"), 0.5, 20)
    return make_population(DIGITS, parts)


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("clusters", [10, 20])
def test_major_class_clusters_have_the_exact_share(rho: float, clusters: int) -> None:
    population = with_major_classes(1000)
    made = major_class(population, clusters, generator(0, "clustering"), rho)
    size = 1000 // clusters
    assert made.sizes.tolist() == [size] * clusters
    own = population.class_counts().argmax(axis=1)
    for c in range(clusters):
        held = np.bincount(own[made.members(c)], minlength=10)
        exact = np.full(10, (1 - rho) / 9 * size)
        exact[c % 10] = rho * size
        assert np.abs(held - exact).max() < 1 + 1e-9
        assert held[c % 10] == round(rho * size)


@given(clients=st.integers(1, 80), clusters=st.integers(1, 15), rho=st.floats(0.1, 1), seed=seeds)
@settings(max_examples=part_of(30))
def test_major_class_puts_every_client_into_exactly_one_cluster(
    clients: int, clusters: int, rho: float, seed: int
) -> None:
    made = major_class(with_major_classes(clients), clusters, generator(seed, "clustering"), rho)
    assert made.labels.min() >= 0
    assert made.sizes.max() - made.sizes.min() <= 1


def test_rho_cluster_outside_its_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"clustering\.rho_cluster = 0\.05.*between 1/classes = 0\.1 and 1"):
        major_class(with_major_classes(20), 2, generator(0, "clustering"), 0.05)


def test_a_clustering_refuses_labels_outside_its_range() -> None:
    with pytest.raises(InputError, match=r"labels must be from -1 \(left out\) to 1; they are from"):
        Clustering(np.array([0, 2]), 2)


def test_profiles_by_hand() -> None:
    data = Dataset("four", np.zeros((4, 1)), np.array([0, 0, 1, 1]), np.zeros((1, 1)), np.zeros(1, int), 2)
    population = make_population(data, [np.array([0, 1]), np.array([2]), np.array([3])])
    first, second = describe(population, Clustering(np.array([0, 1, 0]), 2))
    assert (first.size, first.samples, first.members) == (2, 3, [0, 2])
    assert first.emd == pytest.approx(abs(2 / 3 - 1 / 2) + abs(1 / 3 - 1 / 2))
    assert (second.size, second.samples, second.major_class, second.major_share) == (1, 1, 1, 1.0)
    assert second.emd == pytest.approx(1.0)
