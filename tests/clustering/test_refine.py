"""The local search, and the search for a given virtual time, against plain trials of every change."""

from dataclasses import replace
from itertools import combinations, product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.clustering.feduc import time_budget
from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.greedy import feduc_labels
from atoll.clustering.feduc.problem import PATTERNS, Pattern, Problem
from atoll.clustering.feduc.refine import GAIN, refine
from atoll.clustering.feduc.time_budget import feduc_for_time, within
from atoll.network.completion import completion_of
from atoll.network.network import Network
from atoll.support.arrays import Ids
from tests.clustering.test_feasible import default_network, small_problem
from tests.tiers import part_of, thinned

patterns = pytest.mark.parametrize("pattern", PATTERNS)


def neighbours(labels: Ids, aggregators: int) -> list[Ids]:
    """Every assignment that one move or one swap makes of these labels."""
    made = []
    placed = np.flatnonzero(labels >= 0)
    for client, aggregator in product(placed, range(aggregators)):
        moved = labels.copy()
        moved[client] = aggregator
        made.append(moved)
    for first, second in combinations(placed, 2):
        swapped = labels.copy()
        swapped[[first, second]] = labels[[second, first]]
        made.append(swapped)
    return made


@settings(max_examples=part_of(40))
@given(st.integers(0, 10**6), st.sampled_from(PATTERNS), st.integers(2, 9), st.floats(0.5, 2), st.booleans())
def test_refining_is_never_worse_and_keeps_the_limits(
    seed: int, pattern: Pattern, clients: int, tightness: float, timed: bool
) -> None:
    problem = small_problem(seed, pattern, clients, tightness)
    if timed:
        problem = replace(problem, seconds=300.0)
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, 3, clients)
    labels[0] = 0
    before = labels.copy()
    refined = refine(problem, labels)
    assert labels.tolist() == before.tolist()
    assert ((refined < 0) == (labels < 0)).all()
    assert evaluate(problem, refined).bound <= evaluate(problem, labels).bound
    over = np.maximum(problem.limits, completion_of(problem.network, labels))  # it may start over a limit
    assert (completion_of(problem.network, refined) <= over).all()
    assert refine(problem, labels).tolist() == refined.tolist()


@patterns
def test_refining_ends_where_no_move_and_no_swap_gains(pattern: Pattern) -> None:
    gained = 0
    for seed in range(6):
        problem = small_problem(seed, pattern, clients=8, tightness=1.2)
        labels = feduc_labels(problem)
        refined = refine(problem, labels)
        least = evaluate(problem, refined).bound
        gained += least < evaluate(problem, labels).bound * (1 - 1e-6)
        for other in neighbours(refined, 3):
            if (completion_of(problem.network, other) <= problem.limits).all():
                assert evaluate(problem, other).bound >= least * (1 - GAIN)
    assert gained >= 2


def test_refining_ends_after_the_changes_allowed() -> None:
    problem = replace(small_problem(0, clients=8), limits=np.full(3, np.inf))
    labels = np.arange(8) % 3
    assert refine(problem, labels, changes=0).tolist() == labels.tolist()
    bounds = [evaluate(problem, refine(problem, labels, changes=count)).bound for count in (0, 3, 10, 40, 1000)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < bounds[0]


def test_a_cluster_over_its_limit_does_not_get_longer() -> None:
    problem = replace(small_problem(3, clients=8), limits=np.full(3, 0.01))
    labels = np.random.default_rng(0).integers(0, 3, 8)
    refined = refine(problem, labels)
    assert (completion_of(problem.network, refined) <= completion_of(problem.network, labels)).all()


@pytest.mark.slow
@patterns
def test_refining_the_papers_network(pattern: Pattern) -> None:
    problem = replace(default_network(4.0, megabytes=2.56), pattern=pattern)
    labels = feduc_labels(problem)
    refined = refine(problem, labels)
    assert evaluate(problem, refined).bound < evaluate(problem, labels).bound
    assert (completion_of(problem.network, refined) <= 4).all()


# --- objective "time"


def is_cut_by_empty(problem: Problem, labels: Ids) -> bool:
    links: nx.Graph[int] = nx.Graph()
    links.add_nodes_from(range(problem.network.aggregators))
    links.add_edges_from((j, other) for j, near in enumerate(problem.network.neighbours) for other in near)
    return not nx.is_connected(links.subgraph(labels.tolist()))


def nearest(problem: Problem) -> Ids:
    return problem.network.upload_seconds.argmin(axis=1)


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 1))
@pytest.mark.parametrize("refined", thinned([False, True], 1))
def test_the_search_for_a_time_is_never_worse_than_the_greedy_pass_and_the_nearest(
    pattern: Pattern, refined: bool
) -> None:
    gained = 0
    for seed in range(5):
        problem = small_problem(seed, pattern, clients=8, tightness=1.5)
        timed = within(problem, 150.0)
        labels = feduc_for_time(problem, 150.0, refine=refined)
        bound = evaluate(timed, labels).bound
        completion = completion_of(problem.network, labels)
        assert (completion <= problem.limits).all()
        starts = [feduc_labels(problem), feduc_labels(timed), nearest(problem)]
        starts = [start for start in starts if (completion_of(problem.network, start) <= problem.limits).all()]
        whole = [start for start in starts if not (pattern in ("decsyn", "decasy") and is_cut_by_empty(problem, start))]
        gained += bound < evaluate(timed, starts[0]).bound * (1 - 1e-6)
        assert all(bound <= evaluate(timed, start).bound for start in whole or starts)
        assert not whole or whole == starts or not is_cut_by_empty(problem, labels)
        again = feduc_for_time(problem, 150.0, refine=refined)
        assert again.tolist() == labels.tolist()
    assert gained


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 1))
def test_the_search_for_a_time_gains_by_shorter_limits(pattern: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [replace(small_problem(seed, pattern, clients=8, tightness=3.0), steps=20000) for seed in range(5)]

    def bounds() -> list[float]:
        return [evaluate(within(each, 60.0), feduc_for_time(each, 60.0, refine=False)).bound for each in problems]

    searched = bounds()
    monkeypatch.setattr(time_budget, "_grid", lambda problem, longest: [])
    monkeypatch.setattr(time_budget, "HALVINGS", 0)
    pairs = list(zip(searched, bounds(), strict=True))
    assert all(one <= other for one, other in pairs)
    assert any(one < other for one, other in pairs)


def test_a_time_objective_keeps_aggregators_linked() -> None:
    """On a line, three aggregators whose middle one has the slowest uploads: the least bound would leave it out."""
    compute, upload = np.full(6, 1.0), np.full((6, 3), 0.1)
    upload[:, 1] = 0.6
    line = Network(compute, upload, np.ones(3), np.full((3, 3), 0.1) * (1 - np.eye(3)), ((1,), (0, 2), (1,)))
    problem = Problem("decsyn", line, np.ones(6), np.tile(np.eye(2), (3, 1)) - 0.5, np.full(3, np.inf), steps=50)
    assert is_cut_by_empty(problem, np.array([0, 0, 2, 2, 2, 0]))
    labels = feduc_for_time(problem, 500.0)
    assert not is_cut_by_empty(problem, labels)
    kept = refine(problem, np.array([0, 0, 1, 2, 2, 2]), may_empty=False)
    assert set(kept.tolist()) == {0, 1, 2}


def test_clients_that_need_no_time_leave_no_limits_to_try() -> None:
    upload = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    network = Network(np.zeros(4), upload, np.ones(2), np.zeros((2, 2)), ((), ()))
    problem = Problem("censyn", network, np.ones(4), np.tile(np.eye(2), (2, 1)) - 0.5, np.full(2, np.inf), steps=50)
    timed = within(problem, 100.0)
    found = evaluate(timed, feduc_for_time(problem, 100.0)).bound
    assert found <= min(evaluate(timed, np.array(labels)).bound for labels in product(range(2), repeat=4)) * (1 + 1e-9)


@pytest.mark.more
def test_less_time_asks_for_shorter_completion_in_synchronous_training() -> None:
    problem = replace(default_network(np.inf, megabytes=2.56), pattern="censyn", mu=0.5)
    found = [feduc_for_time(problem, seconds, refine=False) for seconds in (300.0, 30_000.0)]
    short, long = (completion_of(problem.network, labels).max() for labels in found)
    assert short < long
