"""Making room against brute force: every assignment of tight small problems is tried."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from atoll import InputError
from atoll.clustering.feduc import feasible as room
from atoll.clustering.feduc import program
from atoll.clustering.feduc.feasible import chain_of_moves, make_room
from atoll.clustering.feduc.problem import Pattern, Problem
from atoll.clustering.feduc.program import assignment
from atoll.network.completion import completion_of, completion_seconds
from atoll.network.network import Network
from atoll.network.topology import grid
from atoll.network.wireless import Radio, grid_positions, wireless_network
from atoll.support.arrays import Floats, Ids


def network_of(compute: Floats, upload: Floats, rng: np.random.Generator) -> Network:
    """Seconds as given; aggregators on a line."""
    aggregators = upload.shape[1]
    exchange = rng.uniform(0.05, 0.3, (aggregators, aggregators))
    np.fill_diagonal(exchange, 0)
    near = tuple(tuple(k for k in (j - 1, j + 1) if 0 <= k < aggregators) for j in range(aggregators))
    transfer = rng.uniform(0.05, 0.3, (aggregators,))
    return Network(compute, upload, transfer, exchange, near)


def small_problem(seed: int, pattern: Pattern = "censyn", clients: int = 6, tightness: float = 0.75) -> Problem:
    """Three aggregators, unlike clients; from `tightness` 1.2 on most seeds have an assignment, at 0.6 few."""
    rng = np.random.default_rng(seed)
    network = network_of(rng.uniform(0.1, 1.0, clients), rng.uniform(0.1, 0.9, (clients, 3)), rng)
    sizes = rng.integers(20, 60, clients).astype(float)
    shares = rng.dirichlet(np.full(3, 0.3), clients)
    limits = 0.5 + tightness * rng.uniform(0.8, 1.2, 3) * clients / 6
    return Problem(
        pattern,
        network,
        sizes,
        shares - np.average(shares, axis=0, weights=sizes),
        limits,
        steps=int(rng.choice([50, 1000, 20000])),
        mu=float(rng.choice([0.5, 2.0])),
    )


def feasible(problem: Problem, clients: Ids) -> bool:
    """Try every assignment of these clients."""
    network = problem.network
    for aggregators in product(range(network.aggregators), repeat=len(clients)):
        chosen = np.array(aggregators)
        if all(
            completion_seconds(
                network.compute_seconds[clients[chosen == j]], network.upload_seconds[clients[chosen == j], j]
            )
            <= problem.limits[j]
            for j in range(network.aggregators)
        ):
            return True
    return False


def stuck(problem: Problem, rng: np.random.Generator) -> tuple[Ids, int] | None:
    """Place clients anywhere within the limits, in random order, until one fits nowhere."""
    network = problem.network
    labels = np.full(network.clients, -1)
    for client in rng.permutation(network.clients):
        for aggregator in rng.permutation(network.aggregators):
            labels[client] = aggregator
            if completion_of(network, labels)[aggregator] <= problem.limits[aggregator]:
                break
            labels[client] = -1
        if labels[client] < 0:
            return labels, int(client)
    return None


def check_made_room(problem: Problem, before: Ids, client: int, after: Ids) -> None:
    assert (completion_of(problem.network, after) <= problem.limits).all()
    assert np.flatnonzero(after >= 0).tolist() == sorted([*np.flatnonzero(before >= 0).tolist(), client])


@pytest.mark.more
@pytest.mark.parametrize("chains", [0, room.CHAINS], ids=["program", "chains first"])
def test_room_is_made_exactly_where_there_is_an_assignment(chains: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHAINS", chains)
    made = refused = 0
    for seed in range(90):
        problem = small_problem(seed, tightness=0.6 + 0.15 * (seed % 3))
        case = stuck(problem, np.random.default_rng(seed))
        if case is None:
            continue
        before, client = case
        after = make_room(problem, before, client)
        if after is None:
            refused += 1
            assert not feasible(problem, np.arange(6))
        else:
            made += 1
            check_made_room(problem, before, client, after)
    assert made >= 10
    assert refused >= 10


def test_what_cannot_be_done_for_the_clients_placed_is_refused() -> None:
    for seed in range(40):
        problem = small_problem(seed, tightness=0.5)
        case = stuck(problem, np.random.default_rng(seed))
        if case is not None and not feasible(problem, np.append(np.flatnonzero(case[0] >= 0), case[1])):
            assert make_room(problem, *case) is None


def whole_assignment(problem: Problem) -> Ids | None:
    """Return labels of all clients within the limits, or None, which proves that there are none."""
    clients = np.arange(problem.network.clients)
    return assignment(problem, clients, np.full(len(clients), -1, np.int64))


@pytest.mark.more
def test_a_whole_assignment_is_found_exactly_where_there_is_one() -> None:
    found = 0
    for seed in range(60):
        problem = small_problem(seed, tightness=0.6 + 0.15 * (seed % 3))
        labels = whole_assignment(problem)
        assert (labels is not None) == feasible(problem, np.arange(6))
        if labels is not None:
            found += 1
            assert (labels >= 0).all()
            assert (completion_of(problem.network, labels) <= problem.limits).all()
    assert 10 <= found <= 50


def by_hand(upload: list[list[float]], limits: list[float]) -> Problem:
    rng = np.random.default_rng(0)
    clients = len(upload)
    network = network_of(np.zeros(clients), np.array(upload), rng)
    return Problem("censyn", network, np.ones(clients), np.zeros((clients, 1)), np.array(limits), steps=10)


def test_two_clients_leave_where_one_is_not_enough() -> None:
    # The newcomer needs all 4 seconds of aggregator 0; its two clients fit only at aggregators 1 and 2.
    problem = by_hand([[2.0, 1.0, 9.0], [2.0, 9.0, 1.0], [4.0, 9.0, 9.0]], [4.0, 1.0, 1.0])
    before = np.array([0, 0, -1])
    assert chain_of_moves(problem, before, 2) is not None
    after = make_room(problem, before, 2)
    assert after is not None
    assert after.tolist() == [1, 2, 0]
    assert before.tolist() == [0, 0, -1]


def test_a_chain_of_three_moves_is_found_and_nobody_moves_without_need() -> None:
    # 3 takes the place of 0, which takes that of 1, which takes the free one; client 2 need not move.
    problem = by_hand(
        [[1.0, 1.0, 9.0, 9.0], [9.0, 1.0, 1.0, 9.0], [9.0, 9.0, 9.0, 1.0], [1.0, 9.0, 9.0, 9.0]], [1.0, 1.0, 1.0, 1.0]
    )
    after = chain_of_moves(problem, np.array([0, 1, 3, -1]), 3)
    assert after is not None
    assert after.tolist() == [1, 2, 3, 0]


def test_aggregators_without_a_limit_take_everyone() -> None:
    problem = by_hand([[3.0, 5.0], [3.0, 5.0], [3.0, 5.0]], [4.0, np.inf])
    labels = whole_assignment(problem)
    assert labels is not None
    assert (completion_of(problem.network, labels) <= problem.limits).all()


def test_a_limit_met_to_the_last_bit_is_kept_and_one_missed_by_a_bit_is_not() -> None:
    upload = [[0.1], [0.2], [0.3]]
    exactly = completion_seconds(np.zeros(3), np.array(upload)[:, 0])
    assert whole_assignment(by_hand(upload, [exactly])) is not None
    assert whole_assignment(by_hand(upload, [np.nextafter(exactly, 0)])) is None


def test_a_search_without_proof_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = default_network(2.2, megabytes=8)
    monkeypatch.setattr(program, "LARGEST_PROGRAM", 1000)
    with pytest.raises(InputError, match=r"clustering.time_limit = 2.2: 100 clients are too many"):
        whole_assignment(problem)
    monkeypatch.undo()
    monkeypatch.setattr(program, "SEARCH_SECONDS", 0)
    with pytest.raises(
        InputError, match=r"clustering.time_limit = 2.2: the search was ended after 0 s without a proof"
    ):
        whole_assignment(problem)


def default_network(limit: float, megabytes: float, seed: int = 0) -> Problem:
    """100 clients and 16 aggregators as in FedUC's Sec. VI."""
    rng = np.random.default_rng(seed)
    aggregators_xy, server_xy = grid_positions(4, 4)
    sizes = rng.integers(100, 1001, 100).astype(float)
    network = wireless_network(
        rng.uniform(0, 40, (100, 2)),
        aggregators_xy,
        server_xy,
        sizes * rng.uniform(0.5e-3, 1.5e-3, 100),
        rng.uniform(0.05, 0.1, 100),
        int(megabytes * 2**20),
        grid(4, 4),
        Radio(),
    )
    shares = np.eye(10)[np.arange(100) // 10]
    return Problem(
        "cenasy", network, sizes, shares - np.average(shares, axis=0, weights=sizes), np.full(16, limit), steps=1000
    )


def test_room_is_made_on_the_papers_network() -> None:
    problem = default_network(3.1, megabytes=8)
    made = 0
    for seed in range(3):
        case = stuck(problem, np.random.default_rng(seed))
        assert case is not None
        after = chain_of_moves(problem, *case)
        assert after is not None
        check_made_room(problem, *case, after)
        made += int(((after != case[0]) & (case[0] >= 0)).sum())
    assert made <= 9  # one to three move each time


def test_too_tight_limits_are_refused_at_once_on_the_papers_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHAINS", 0)
    problem = replace(default_network(1.0, megabytes=8), limits=np.linspace(1.8, 2.2, 16))
    case = stuck(problem, np.random.default_rng(0))
    assert case is not None
    assert make_room(problem, *case) is None
