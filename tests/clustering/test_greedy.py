"""FedUC's greedy clustering against Algorithm 2 as printed, every candidate judged by the whole bound."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from atoll import InputError
from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.greedy import choose, feduc_labels, place_again, placing_order
from atoll.clustering.feduc.incremental import queues
from atoll.clustering.feduc.incremental.bounds import start
from atoll.clustering.feduc.problem import PATTERNS, Pattern, Problem
from atoll.network.network import Network
from atoll.network.topology import TOPOLOGIES, neighbours_of
from atoll.support.arrays import Ids
from tests.clustering.test_bound import random_problem
from tests.tiers import thinned


def slow_feduc(problem: Problem) -> Ids | None:
    """Algorithm 2 with F_temp reset for each client; None where a client fits no aggregator."""
    labels = np.full(problem.network.clients, -1, np.int64)
    for client in placing_order(problem):
        bounds, completions = slow_candidates(problem, labels, client)
        aggregator = choose(bounds, completions, completions <= problem.limits)
        if aggregator is None:
            return None
        labels[client] = aggregator
    return labels


def slow_candidates(problem: Problem, labels: Ids, client: int) -> tuple[npt.NDArray[np.float64], ...]:
    bounds, completions = [], []
    for aggregator in range(problem.network.aggregators):
        tried = labels.copy()
        tried[client] = aggregator
        bound = evaluate(problem, tried)
        bounds.append(bound.bound)
        completions.append(bound.completion_seconds[aggregator])
    return np.array(bounds), np.array(completions)


def some_neighbours(aggregators: int, rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """A line with random links more: connected, but the aggregators with clients need not be."""
    near = np.eye(aggregators, k=1) + (rng.random((aggregators, aggregators)) < rng.choice([0.0, 0.3, 1.0]))
    near = np.triu(near, 1) + np.triu(near, 1).T
    return tuple(tuple(int(k) for k in np.flatnonzero(row)) for row in near)


def some_network(clients: int, aggregators: int, rng: np.random.Generator) -> Network:
    exchange = rng.uniform(0.05, 0.3, (aggregators, aggregators))
    np.fill_diagonal(exchange, 0)
    compute = rng.uniform(0.1, 0.6, clients)
    if rng.random() < 0.3:
        compute = np.round(compute, 1)  # equal ones
    return Network(
        compute,
        rng.uniform(0.02, 0.4, (clients, aggregators)),
        rng.uniform(0.05, 0.3, aggregators),
        exchange,
        some_neighbours(aggregators, rng),
    )


def some_problem(pattern: Pattern, seed: int) -> Problem:
    """Random sizes, speeds and constants; limits from none to tight; saturated runs and short ones."""
    rng = np.random.default_rng([seed, PATTERNS.index(pattern)])
    clients, aggregators = int(rng.integers(3, 21)), int(rng.integers(1, 7))
    classes = int(rng.integers(2, 5))
    network = some_network(clients, aggregators, rng)
    shares = np.eye(classes)[rng.integers(classes, size=clients)] if seed % 2 else rng.random((clients, classes))
    shares = shares / shares.sum(axis=1, keepdims=True)
    sizes = rng.integers(20, 60, clients).astype(np.float64)
    if seed % 3 == 0:
        sizes = np.full(clients, 40.0)
    share_of_all = np.average(shares, axis=0, weights=sizes)
    share_of_uploads = network.upload_seconds.sum(axis=0) / aggregators
    limits = network.compute_seconds.max() + share_of_uploads * rng.uniform(0.4, 1.5, aggregators)
    intra_rounds, local_steps = int(rng.integers(1, 6)), int(rng.integers(1, 3))
    aggregations = int(rng.choice([1, 40, 3000, 20_000]))
    return Problem(
        pattern,
        network,
        sizes,
        shares - share_of_all,
        np.full(aggregators, np.inf) if seed % 4 == 0 else limits,
        steps=aggregations * intra_rounds * local_steps,
        intra_rounds=intra_rounds,
        local_steps=local_steps,
        mu=float(rng.choice([1e-4, 0.05, 1.0, 5.0])),
        optimal_losses=rng.uniform(0, 0.3, clients) if seed % 5 == 0 else None,
        noise=rng.uniform(0, 2, clients) if seed % 5 < 2 else None,
        cluster_optimum=0.4 if seed % 5 == 0 else 0.0,
        frequencies=rng.uniform(0.5, 2, aggregators) if seed % 7 == 0 else None,
        tau_max=3.0 if seed % 11 == 0 else None,
        seconds=aggregations * float(rng.uniform(0.5, 2)) if seed % 3 == 1 else None,
    )


@pytest.mark.parametrize("seed", thinned(range(50), 12))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_fast_clustering_is_the_printed_one(pattern: Pattern, seed: int) -> None:
    problem = some_problem(pattern, seed)
    expected = slow_feduc(problem)
    if expected is None:  # needs room to be made, which the printed algorithm cannot
        problem = replace(problem, limits=problem.limits * 1.5)
        expected = slow_feduc(problem)
    assert expected is not None
    assert feduc_labels(problem).tolist() == expected.tolist()


def test_clients_are_placed_by_samples_and_then_by_number() -> None:
    problem = some_problem("censyn", 1)
    sizes = np.tile([20.0, 40.0], len(problem.sizes))[: len(problem.sizes)]
    expected = sorted(range(len(sizes)), key=lambda client: (-sizes[client], client))
    assert placing_order(replace(problem, sizes=sizes)).tolist() == expected


@pytest.mark.parametrize("seed", thinned(range(50), 12))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_running_bounds_are_the_whole_ones(pattern: Pattern, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Placed at random, so that states are also those that no greedy pass would reach; in one block, and in many."""
    monkeypatch.setattr(queues, "_MOST", (4, 5, 1024)[seed % 3])
    problem = some_problem(pattern, seed)
    rng = np.random.default_rng(seed)
    labels = np.full(problem.network.clients, -1, np.int64)
    state = start(problem, labels)
    for client in rng.permutation(len(labels)).tolist():
        bounds, completions = state.candidates(client)
        whole_bounds, whole_completions = slow_candidates(problem, labels, client)
        np.testing.assert_allclose(bounds, whole_bounds, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(completions, whole_completions, rtol=1e-13)
        labels[client] = rng.integers(problem.network.aggregators)
        state.place(client, int(labels[client]))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_candidates_on_a_network_with_downloads(pattern: Pattern) -> None:
    problem, labels = random_problem(pattern, 0, seconds=37.3)
    downloads = np.random.default_rng(1).uniform(0.1, 1, problem.network.upload_seconds.shape)
    problem = replace(problem, network=replace(problem.network, download_seconds=downloads))
    client = int(np.flatnonzero(labels < 0)[0])
    np.testing.assert_allclose(start(problem, labels).candidates(client), slow_candidates(problem, labels, client))


def test_candidates_where_a_merge_takes_more_than_half_of_the_gap() -> None:
    problem, labels = random_problem("cenasy", 0, aggregators=2, lr=0.4, mu=1.0, frequencies=np.array([9.0, 1.0]))
    labels[:], labels[0], labels[1] = 0, 1, -1
    np.testing.assert_allclose(start(problem, labels).candidates(1), slow_candidates(problem, labels, 1))


def grid_problem(pattern: Pattern, clients: int, side: int = 3) -> Problem:
    """A square grid of aggregators."""
    rng = np.random.default_rng(0)
    network = some_network(clients, side**2, rng)
    near = neighbours_of(TOPOLOGIES["grid"](rows=side, columns=side))
    sizes = rng.integers(20, 60, clients).astype(np.float64)
    shares = rng.dirichlet(np.full(4, 0.3), clients)
    deviations = shares - np.average(shares, axis=0, weights=sizes)
    return Problem(
        pattern, replace(network, neighbours=near), sizes, deviations, np.full(side**2, np.inf), steps=10_000
    )


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("pattern", thinned(PATTERNS))
def test_blocks_of_any_size_give_the_same_clustering(
    pattern: Pattern, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = grid_problem(pattern, 300)
    if limited:
        problem = replace(problem, limits=np.full(9, 0.6 + 0.21 * 300 / 9))
    found = []
    for room in (4, 33, 1024):
        monkeypatch.setattr(queues, "_LEAST", room)
        monkeypatch.setattr(queues, "_MOST", room)
        found.append(feduc_labels(problem).tolist())
    assert found[0] == found[1] == found[2]
    assert max(np.bincount(found[0])) > 33  # clients, in several blocks


@pytest.mark.parametrize("pattern", PATTERNS)
def test_nothing_drifts_over_many_clients(pattern: Pattern) -> None:
    problem = grid_problem(pattern, 400)
    rng = np.random.default_rng(1)
    labels = np.full(400, -1, np.int64)
    labels[:399] = np.where(rng.random(399) < 0.4, 4, rng.integers(9, size=399))  # one cluster outgrows its room
    state = start(problem, labels)
    bounds, completions = state.candidates(399)
    whole_bounds, whole_completions = slow_candidates(problem, labels, 399)
    np.testing.assert_allclose(bounds, whole_bounds, rtol=1e-12)
    np.testing.assert_allclose(completions, whole_completions, rtol=1e-13)


@pytest.mark.parametrize("places", [3, 36])
@pytest.mark.parametrize(
    ("aggregations", "seconds"), [(1, None), (40, None), (400, None), (1, 0.5), (1, 30.0), (1, 900.0)]
)
def test_short_runs_of_decsyn(aggregations: int, seconds: float | None, places: int) -> None:
    """Far from saturated, on a larger grid, where steps are summed one by one, or eigenvalues taken."""
    problem = replace(grid_problem("decsyn", 80, 6), mu=0.05, steps=5 * aggregations, seconds=seconds)
    labels = np.random.default_rng(0).integers(places, size=80)
    labels[7] = -1
    bounds, _ = start(problem, labels).candidates(7)
    np.testing.assert_allclose(bounds, slow_candidates(problem, labels, 7)[0], rtol=1e-11)


def tight_problem(limit: float) -> Problem:
    """Client 0, the larger one, prefers aggregator 0 by its upload; client 1 fits nowhere else."""
    uploads = np.array([[0.5, 1.0], [0.5, 9.0]])
    network = Network(np.zeros(2), uploads, np.ones(2), np.ones((2, 2)) - np.eye(2), ((1,), (0,)))
    return Problem("censyn", network, np.array([2.0, 1.0]), np.zeros((2, 1)), np.full(2, limit), steps=100)


def test_placed_clients_make_room() -> None:
    assert slow_feduc(tight_problem(1.0)) is not None  # both fit at aggregator 0 just so
    assert feduc_labels(tight_problem(1.0)).tolist() == [0, 0]
    problem = replace(tight_problem(1.0), limits=np.array([0.9, 1.0]))
    assert slow_feduc(problem) is None
    assert feduc_labels(problem).tolist() == [1, 0]


def test_the_last_client_of_a_cluster_stays_where_none_may_be_empty() -> None:
    network = Network(np.ones(2), np.ones((2, 2)), np.ones(2), np.zeros((2, 2)), ((1,), (0,)))
    problem = Problem("censyn", network, np.ones(2), np.eye(2) - 0.5, np.full(2, np.inf), steps=100)
    assert place_again(problem, np.array([0, 1]), 1, may_empty=False).tolist() == [0, 1]


def test_a_client_that_fits_nowhere_is_an_error_that_names_it() -> None:
    with pytest.raises(
        InputError, match=r"time_limit = 0\.4: client 0 fits no aggregator, even alone .*0\.5 s at aggre"
    ):
        feduc_labels(tight_problem(0.4))
    with pytest.raises(
        InputError, match=r"time_limit = 0\.6: client 1 .* does not make room .*completion is 1 s at aggregator 0"
    ):
        feduc_labels(tight_problem(0.6))


def test_or_goes_where_it_overshoots_least() -> None:
    assert feduc_labels(tight_problem(0.6), overshoot=True).tolist() == [0, 0]
    problem = replace(tight_problem(0.6), limits=np.array([0.9, 1.0]))
    assert feduc_labels(problem, overshoot=True).tolist() == [1, 0]  # not while room can be made
    net = Network(np.ones(1), np.array([[4.0, 3.0]]), np.ones(2), np.zeros((2, 2)), ((1,), (0,)))
    alone = Problem("censyn", net, np.ones(1), np.zeros((1, 1)), np.array([4.5, 1.0]), steps=100)
    assert feduc_labels(alone, overshoot=True).tolist() == [0]  # by 0.5 s, not where it would be sooner


def test_rounding_decides_nothing() -> None:
    bounds, seconds = np.array([1.0, 1.0 - 1e-13, 2.0]), np.array([3.0, 3.0 + 1e-13, 1.0])
    assert choose(bounds, seconds, np.array([True, True, True])) == 0
    assert choose(bounds, seconds + np.array([0.1, 0, 0]), np.array([True, True, True])) == 1
    assert choose(bounds, seconds, np.array([False, False, True])) == 2
    assert choose(bounds, seconds, np.zeros(3, bool)) is None
    assert choose(-bounds * 1e-30, seconds, np.array([True, True, False])) == 0  # just below 0


def test_an_event_of_no_time_is_an_error_in_an_asynchronous_pattern() -> None:
    problem = grid_problem("cenasy", 4)
    network = replace(
        problem.network, compute_seconds=np.zeros(4), upload_seconds=np.zeros((4, 9)), transfer_seconds=np.zeros(9)
    )
    with pytest.raises(InputError, match="takes 0 seconds"):
        feduc_labels(replace(problem, network=network))
