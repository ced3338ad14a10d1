"""Laws of networks: Theorem 5, virtual time inside clusters, topologies, and moving clients."""

from functools import cache
from itertools import permutations

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll import InputError
from atoll.network.completion import completion_of, completion_seconds, event_seconds
from atoll.network.mobility import Trace, random_waypoint
from atoll.network.network import Network
from atoll.network.network_files import matrix_network
from atoll.network.topology import (
    complete,
    erdos_renyi,
    graph_of,
    grid,
    neighbours_of,
    regular,
    require_connected,
    ring,
    star,
)
from atoll.network.wireless import Radio, rate
from atoll.support.arrays import Floats
from tests.tiers import part_of

seeds = st.integers(0, 2**32)
seconds = st.floats(0, 1e3, allow_subnormal=False)


def in_this_order(compute: list[float], upload: list[float], order: tuple[int, ...]) -> float:
    """Equation 50 as printed, for any order."""
    uploaded = 0.0
    for client in order:
        uploaded = max(uploaded, compute[client]) + upload[client]
    return uploaded


@cache
def all_orders(clients: int) -> npt.NDArray[np.int64]:
    return np.array(list(permutations(range(clients))), np.int64)


def best_of_all_orders(compute: Floats, upload: Floats) -> float:
    orders = all_orders(len(compute))
    uploaded = np.zeros(len(orders))
    for place in range(len(compute)):
        uploaded = np.maximum(uploaded, compute[orders[:, place]]) + upload[orders[:, place]]
    return float(uploaded.min())


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=7))
@settings(max_examples=part_of(150), deadline=None)
def test_theorem_5_no_order_beats_increasing_compute_time(times: list[tuple[int, int]]) -> None:
    compute, upload = np.array(times, float).reshape(-1, 2).T  # whole seconds: sums are exact, equal times are common
    assert completion_seconds(compute, upload) == best_of_all_orders(compute, upload)


@given(st.lists(st.tuples(seconds, seconds), max_size=7))
@settings(max_examples=part_of(100), deadline=None)
def test_theorem_5_with_any_times(times: list[tuple[float, float]]) -> None:
    compute, upload = np.array(times, float).reshape(-1, 2).T
    assert completion_seconds(compute, upload) == pytest.approx(best_of_all_orders(compute, upload), rel=1e-12)


def test_a_worse_order_is_worse() -> None:
    """The brute force can tell orders apart."""
    assert in_this_order([1, 5], [4, 1], (0, 1)) == completion_seconds([1, 5], [4, 1]) == 6
    assert in_this_order([1, 5], [4, 1], (1, 0)) == 10


@st.composite
def networks(draw: st.DrawFn) -> tuple[Network, npt.NDArray[np.int64]]:
    """Return a network and labels; times repeat, and aggregators without clients are common."""
    clients, aggregators = draw(st.integers(0, 12)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(seeds))
    made = matrix_network(
        rng.choice(rng.uniform(0, 3, 4), clients),
        rng.uniform(0, 2, (clients, aggregators)),
        rng.uniform(0, 1, aggregators),
        rng.uniform(0, 1, (aggregators, aggregators)),
        neighbours_of(erdos_renyi(aggregators, 0.5, rng)),
    )
    return made, rng.integers(-1, aggregators, clients)


@given(networks())
def test_all_clusters_at_once_equal_one_after_the_other_to_the_bit(case: tuple[Network, npt.NDArray[np.int64]]) -> None:
    network, labels = case
    for j, found in enumerate(completion_of(network, labels)):
        members = sorted(np.flatnonzero(labels == j).tolist(), key=lambda i: (network.compute_seconds[i], i))
        compute, upload = network.compute_seconds.tolist(), network.upload_seconds[:, j].tolist()
        assert found == in_this_order(compute, upload, tuple(members))
        assert found == completion_seconds(network.compute_seconds[labels == j], network.upload_seconds[labels == j, j])


@given(networks(), st.sampled_from(["censyn", "cenasy", "decsyn", "decasy"]), st.integers(1, 6))
def test_an_event_is_intra_rounds_completions_and_one_transfer(
    case: tuple[Network, npt.NDArray[np.int64]], pattern: str, intra_rounds: int
) -> None:
    network, labels = case
    completion = completion_of(network, labels)
    for j, found in enumerate(event_seconds(network, labels, pattern, intra_rounds)):
        if pattern.startswith("cen"):
            transfer = network.transfer_seconds[j]
        else:
            transfer = max((network.exchange_seconds[j, other] for other in network.neighbours[j]), default=0)
        assert found == (intra_rounds * completion[j] + transfer if (labels == j).any() else 0)


@given(networks(), seeds)
def test_leaving_a_client_out_never_takes_longer(case: tuple[Network, npt.NDArray[np.int64]], seed: int) -> None:
    network, labels = case
    fewer = np.where(np.random.default_rng(seed).random(len(labels)) < 0.5, -1, labels)
    assert (completion_of(network, fewer) <= completion_of(network, labels)).all()


def test_equal_clusters_have_equal_times_to_the_bit() -> None:
    """Asynchronous patterns visit clusters in turn when clocks are equal; rounding must not decide."""
    rng = np.random.default_rng(0)
    compute, upload = rng.uniform(size=7), rng.uniform(size=7)
    network = matrix_network(np.tile(compute, 9), np.tile(upload, 9)[:, None] * np.ones(9))
    assert len(set(completion_of(network, np.repeat(np.arange(9), 7)).tolist())) == 1


@given(st.floats(1e-3, 1e4), st.floats(1.001, 10), st.floats(1e-3, 10))
def test_rates_fall_with_distance_and_grow_with_power(metres: float, factor: float, watts: float) -> None:
    radio = Radio()
    assert rate(metres * factor, watts, radio) < rate(metres, watts, radio) < rate(metres, watts * factor, radio)


@given(st.integers(1, 12), st.integers(0, 11), seeds)
def test_regular_graphs_have_that_many_neighbours_or_are_refused(aggregators: int, degree: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    if degree >= aggregators or degree * aggregators % 2:
        with pytest.raises(InputError, match=r"network\.degree"):
            regular(aggregators, degree, rng)
    else:
        assert {len(near) for near in neighbours_of(regular(aggregators, degree, rng))} == {degree}


@given(st.integers(1, 8), st.integers(1, 8), seeds)
def test_neighbours_are_mutual_ascending_and_come_back_as_the_graph(rows: int, columns: int, seed: int) -> None:
    size = rows * columns
    rng = np.random.default_rng(seed)
    for graph in (grid(rows, columns), ring(size), star(size), complete(size), erdos_renyi(size, 0.3, rng)):
        near = neighbours_of(graph)
        assert list(graph) == list(range(size)) == list(range(len(near)))
        assert all(list(others) == sorted({*others} - {j}) for j, others in enumerate(near))
        assert all(j in near[other] for j, others in enumerate(near) for other in others)
        assert nx.utils.graphs_equal(graph_of(near), graph)
    require_connected(grid(rows, columns))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    clients = draw(st.integers(1, 4))
    later = st.dictionaries(st.tuples(st.integers(1, 9), st.integers(0, clients - 1)), st.integers(0, 99), max_size=12)
    entries = sorted({**{(0, client): client for client in range(clients)}, **draw(later)}.items())
    rounds, movers = np.array([key for key, _ in entries]).T
    return Trace(clients, rounds, movers, np.array([[value, -value] for _, value in entries], float))


@given(traces(), st.integers(0, 12))
def test_clients_keep_their_last_known_position(trace: Trace, round: int) -> None:
    expected = np.full((trace.clients, 2), np.nan)
    for at, mover, xy in zip(trace.rounds, trace.movers, trace.xy, strict=True):
        if at <= round:
            expected[mover] = xy
    assert np.array_equal(trace.positions(round), expected)


@given(st.floats(0, 10), st.integers(1, 30), st.integers(1, 7), seeds)
@settings(deadline=None)
def test_random_walks_stay_inside_keep_their_speed_and_do_not_depend_on_what_is_recorded(
    metres: float, rounds: int, every: int, seed: int
) -> None:
    start = np.random.default_rng(1).uniform(0, 10, (5, 2))
    fine = random_waypoint(start, 10.0, metres, rounds, 1, np.random.default_rng(seed))
    path = np.array([fine.positions(round) for round in range(rounds)])
    assert np.array_equal(path[0], start)
    assert path.min() >= 0
    assert path.max() <= 10
    moved = np.hypot(*np.moveaxis(np.diff(path, axis=0), -1, 0))
    assert (moved <= metres * (1 + 1e-9) + 1e-12).all()  # less where a corner was turned
    coarse = random_waypoint(start, 10.0, metres, rounds, every, np.random.default_rng(seed))
    for round in range(0, rounds, every):
        assert np.array_equal(coarse.positions(round), path[round])
    assert set(coarse.rounds.tolist()) == set(range(0, rounds, every))


@given(st.floats(0.1, 10), st.integers(2, 30), seeds)
def test_a_walker_goes_as_far_each_round_along_the_line_through_its_targets(
    metres: float, rounds: int, seed: int
) -> None:
    start, rng = np.array([[3.0, 8.0]]), np.random.default_rng(seed)
    points = np.concatenate([start, *(rng.uniform(0, 10, (1, 2)) for _ in range(400))])
    along = np.cumsum([0.0, *np.hypot(*np.diff(points, axis=0).T)])
    assert along[-1] > metres * rounds
    trace = random_waypoint(start, 10.0, metres, rounds, 1, np.random.default_rng(seed))
    for round in range(rounds):
        there = [np.interp(metres * round, along, column) for column in points.T]
        assert trace.positions(round)[0] == pytest.approx(there, abs=1e-9)
