"""Given frequencies and downloads in the clock, against an event clock and sums written by hand."""

from dataclasses import replace

import numpy as np
import pytest

from atoll import InputError
from atoll.clustering.clustering import Clustering
from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.incremental.bounds import start
from atoll.clustering.feduc.problem import PATTERNS, Pattern, Problem
from atoll.methods.papers.hierarchical import Phase, hierarchical_schedule
from atoll.network.completion import completion_seconds, event_seconds
from atoll.network.network import Network
from atoll.network.topology import grid
from atoll.network.wireless import Radio, grid_positions, rate, watts_of, wireless_network
from atoll.support.arrays import Floats, Ids
from tests.clustering.test_greedy import slow_candidates, some_network
from tests.problems import quadratics

PSI = np.array([0.5, 0.3, 0.15, 0.05])
LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])


def made_network(frequencies: Floats | None = None, downloads: bool = False) -> Network:
    rng = np.random.default_rng(0)
    network = some_network(10, 4, rng)
    down = rng.uniform(0.01, 0.2, (10, 4)) if downloads else None
    return replace(network, frequencies=frequencies, download_seconds=down, neighbours=((1,), (0, 2), (1, 3), (2,)))


def made_problem(network: Network, pattern: Pattern) -> Problem:
    shares = np.random.default_rng(1).dirichlet(np.full(3, 0.3), 10)
    limits = np.full(4, np.inf)
    sizes = np.linspace(20, 50, 10)
    return Problem(pattern, network, sizes, shares - shares.mean(axis=0), limits, 1000, frequencies=network.frequencies)


def clock(network: Network, labels: Ids, intra_rounds: int, merges: int) -> Ids:
    """The clusters in the order in which they merge: each, when it is done, waits until its turn by frequency."""
    needed = []
    for j in range(network.aggregators):
        own = np.flatnonzero(labels == j)
        one = completion_seconds(network.compute_seconds[own], network.upload_seconds[own, j])
        needed.append(intra_rounds * one + network.transfer_seconds[j])
    assert network.frequencies is not None
    unit = max(need * psi for need, psi in zip(needed, network.frequencies, strict=True))
    done, order = [unit / psi for psi in network.frequencies], []
    for _ in range(merges):
        j = min(range(len(done)), key=lambda j: (done[j], j))
        order.append(j)
        done[j] += unit / network.frequencies[j]
    return np.array(order)


def test_over_a_long_schedule_clusters_merge_as_often_as_given_and_as_the_bound_counts() -> None:
    network, population = made_network(PSI), quadratics(clients=10)
    schedule = hierarchical_schedule(population, [Phase(0, Clustering(LABELS, 4), network)], "cenasy", 20_000, 5)[0]
    order = [event.active[0] for event in schedule.events]
    assert order == clock(network, LABELS, 5, 4000).tolist()
    shares = np.bincount(order) / len(order)
    np.testing.assert_allclose(shares, PSI, atol=1e-3)
    np.testing.assert_allclose(evaluate(made_problem(network, "cenasy"), LABELS).psi, PSI)
    free = replace(network, frequencies=None)
    assert (event_seconds(network, LABELS, "cenasy", 5) >= event_seconds(free, LABELS, "cenasy", 5) - 1e-12).all()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_only_asynchronous_clusters_wait(pattern: Pattern) -> None:
    given, free = made_network(PSI), made_network()
    waiting, working = (event_seconds(network, LABELS, pattern, 5) for network in (given, free))
    if pattern.endswith("syn"):
        assert waiting.tolist() == working.tolist()
    else:
        np.testing.assert_allclose(waiting * PSI, (working * PSI).max())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_downloads_by_hand(pattern: Pattern) -> None:
    network = made_network(downloads=True)
    assert network.download_seconds is not None
    expected = []
    for j, near in enumerate(network.neighbours):
        own = np.flatnonzero(j == LABELS)
        one = completion_seconds(network.compute_seconds[own], network.upload_seconds[own, j])
        one += max(network.download_seconds[i, j] for i in own)  # one broadcast, until the last has heard it
        sent = max(network.exchange_seconds[j, k] for k in near)
        if pattern == "cenasy":
            sent = 2 * network.transfer_seconds[j]
        if pattern == "censyn":
            sent = network.transfer_seconds[j] + max(network.transfer_seconds)
        expected.append(5 * one + sent)
    np.testing.assert_allclose(event_seconds(network, LABELS, pattern, 5), expected)
    np.testing.assert_allclose(evaluate(made_problem(network, pattern), LABELS).event_seconds, expected)


@pytest.mark.parametrize("frequencies", [None, PSI], ids=["clock", "given"])
@pytest.mark.parametrize("seconds", [None, 300.0])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_running_bounds_know_downloads(pattern: Pattern, seconds: float | None, frequencies: Floats | None) -> None:
    if frequencies is not None and seconds is not None:
        return
    problem = replace(made_problem(made_network(frequencies, downloads=True), pattern), seconds=seconds)
    labels = LABELS.copy()
    labels[[3, 8]] = -1
    state = start(problem, labels)
    np.testing.assert_allclose(state.candidates(8)[0], slow_candidates(problem, labels, 8)[0], rtol=1e-10)


def test_downloads_go_out_with_the_aggregators_power() -> None:
    rng = np.random.default_rng(0)
    clients, (aggregators, server) = rng.uniform(0, 40, (5, 2)), grid_positions(2, 2)
    radio = Radio()
    places = (clients, aggregators, server, np.ones(5), np.full(5, 0.1), 1000.0, grid(2, 2), radio)
    free, network = wireless_network(*places), wireless_network(*places, downloads=True)
    assert free.download_seconds is None
    assert network.download_seconds is not None
    for i in range(5):
        for j in range(4):
            metres = ((clients[i] - aggregators[j]) ** 2).sum() ** 0.5
            assert network.download_seconds[i, j] == pytest.approx(8000 / float(rate(metres, watts_of(33.0), radio)))
    assert network.upload_seconds.tobytes() == free.upload_seconds.tobytes()


@pytest.mark.parametrize("given", [[1.0, 2.0], [1.0, 0.0, 1.0, 1.0], [1.0, np.inf, 1.0, 1.0]])
def test_frequencies_that_are_none_are_refused(given: list[float]) -> None:
    with pytest.raises(InputError, match=r"^network\.frequencies = "):
        made_network(np.array(given))


def test_a_bound_of_other_frequencies_than_the_clock_is_refused() -> None:
    problem = made_problem(made_network(PSI), "cenasy")
    evaluate(replace(problem, frequencies=2 * PSI), LABELS)  # the same up to a factor
    with pytest.raises(InputError, match=r"^clustering\.frequencies = None: must agree with network\.frequencies"):
        evaluate(replace(problem, frequencies=None), LABELS)
    with pytest.raises(InputError, match=r"^network\.frequencies: cannot be used with clustering\.objective = 'time'"):
        evaluate(replace(problem, seconds=9.0), LABELS)
