"""Laws of FedUC's bound."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.problem import PATTERNS, Pattern
from tests.clustering.test_bound import random_problem
from tests.tiers import part_of

SEEDS = st.integers(0, 10_000)
SOME = settings(max_examples=part_of(40), deadline=None)


@given(seed=SEEDS, aggregations=st.integers(1, 7))
@SOME
def test_mixing_keeps_the_weighted_sum_of_equal_errors(seed: int, aggregations: int) -> None:
    """Lemma 3, B S^r 1 = 1 for every r: with equal Gamma_j DecSyn on any graph has CenSyn's residual error."""
    problem, labels = random_problem("decsyn", seed, steps=6 * aggregations, optimal_losses=None, noise=None)
    problem = replace(problem, deviations=np.zeros((12, 1)))
    found = evaluate(problem, labels)
    assert found.delta == pytest.approx(evaluate(replace(problem, pattern="censyn"), labels).delta, rel=1e-12)
    assert found.delta > 0


@given(seed=SEEDS, seconds=st.none() | st.floats(0.1, 500))
@SOME
def test_decsyn_on_a_complete_graph_is_censyn(seed: int, seconds: float | None) -> None:
    problem, labels = random_problem("decsyn", seed, graph=nx.complete_graph(5))
    exchange = np.tile(problem.network.transfer_seconds[:, None], 5)  # events of equal length
    problem = replace(problem, seconds=seconds, network=replace(problem.network, exchange_seconds=exchange))
    found, central = evaluate(problem, labels), evaluate(replace(problem, pattern="censyn"), labels)
    assert found.kappa == central.kappa
    assert found.delta == pytest.approx(central.delta, rel=1e-11)


@given(seed=SEEDS)
@SOME
def test_one_aggregator_makes_the_patterns_equal(seed: int) -> None:
    """Only CenAsy's residual error differs: Theorem 2 sums over all time."""
    problem, labels = random_problem("censyn", seed, aggregators=1)
    central = evaluate(problem, labels)
    for pattern in PATTERNS:
        found = evaluate(replace(problem, pattern=pattern), labels)
        assert found.kappa == pytest.approx(central.kappa, rel=1e-9)
        expected = central.delta / (1 - central.kappa if pattern == "cenasy" else 1)
        assert found.delta == pytest.approx(expected, rel=1e-9)
        assert found.tau_max == 0
        assert found.psi == [1]


@given(seed=SEEDS, pattern=st.sampled_from(PATTERNS))
@SOME
def test_the_order_of_clients_changes_nothing(seed: int, pattern: Pattern) -> None:
    problem, labels = random_problem(pattern, seed)
    assert problem.optimal_losses is not None
    assert problem.noise is not None
    order = np.random.default_rng(seed).permutation(12)
    network = replace(
        problem.network,
        compute_seconds=problem.network.compute_seconds[order],
        upload_seconds=problem.network.upload_seconds[order],
    )
    permuted = replace(
        problem,
        network=network,
        sizes=problem.sizes[order],
        deviations=problem.deviations[order],
        optimal_losses=problem.optimal_losses[order],
        noise=problem.noise[order],
    )
    found, first = evaluate(permuted, labels[order]), evaluate(problem, labels)
    for name, value in vars(first).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-12, err_msg=name)


@given(seed=SEEDS, pattern=st.sampled_from(["cenasy", "decasy"]))
@SOME
def test_kappa_falls_when_a_client_moves_to_a_more_frequent_aggregator(seed: int, pattern: Pattern) -> None:
    """Corollary 1, which takes psi and the staleness as given."""
    rng = np.random.default_rng(seed)
    problem, _ = random_problem(pattern, seed, frequencies=rng.uniform(1, 5, 5), tau_max=3.0, lr=0.01)
    assert problem.frequencies is not None
    labels = rng.permutation(np.arange(12) % 5)
    slow, fast = np.argsort(problem.frequencies)[np.sort(rng.choice(5, 2, replace=False))]
    moved = labels.copy()
    moved[np.flatnonzero(labels == slow)[0]] = fast  # every aggregator has two clients, so none is left empty
    assert evaluate(problem, moved).kappa < evaluate(problem, labels).kappa


@given(seed=SEEDS, pattern=st.sampled_from(PATTERNS))
@SOME
def test_equal_clients_deviate_nowhere(seed: int, pattern: Pattern) -> None:
    """Corollary 2's end: without deviations, noise and gaps between optima nothing remains."""
    problem, labels = random_problem(pattern, seed, optimal_losses=None, noise=None, cluster_optimum=0.0)
    found = evaluate(replace(problem, deviations=np.zeros((12, 0))), labels)
    assert not found.xi.any()
    assert found.delta == 0
    assert found.bound == pytest.approx(found.kappa * 1.7)


@given(seed=SEEDS, pattern=st.sampled_from(PATTERNS))
@SOME
def test_larger_deviations_never_lower_the_bound(seed: int, pattern: Pattern) -> None:
    """Corollary 2."""
    problem, labels = random_problem(pattern, seed)
    larger = replace(problem, deviations=1.5 * problem.deviations)
    assert evaluate(larger, labels).delta > evaluate(problem, labels).delta


@given(seed=SEEDS, pattern=st.sampled_from(PATTERNS), seconds=st.floats(1, 300))
@SOME
def test_the_time_that_steps_take_gives_the_same_steps(seed: int, pattern: Pattern, seconds: float) -> None:
    problem, labels = random_problem(pattern, seed)
    by_steps = evaluate(problem, labels)
    by_time = evaluate(replace(problem, seconds=by_steps.virtual_seconds), labels)
    for name, value in vars(by_steps).items():
        np.testing.assert_allclose(getattr(by_time, name), value, rtol=1e-9, err_msg=name)
    assert evaluate(replace(problem, seconds=seconds), labels).virtual_seconds == pytest.approx(seconds)


@given(seed=SEEDS, aggregations=st.integers(1, 30))
@SOME
def test_decsyn_is_continuous_in_the_time_given(seed: int, aggregations: int) -> None:
    problem, labels = random_problem("decsyn", seed, steps=6)
    event = evaluate(problem, labels).virtual_seconds
    bounds = [
        evaluate(replace(problem, seconds=event * (aggregations + step)), labels).bound for step in (-1e-9, 0, 1e-9)
    ]
    assert bounds == pytest.approx([bounds[1]] * 3, rel=1e-6)


def test_clients_not_assigned_do_not_count() -> None:
    problem, labels = random_problem("decasy", 5)
    assert problem.optimal_losses is not None
    assert problem.noise is not None
    without = labels < 0
    assert without.any()
    odd = replace(
        problem,
        sizes=np.where(without, 1e6, problem.sizes),
        deviations=np.where(without[:, None], 1e6, problem.deviations),
        optimal_losses=np.where(without, 0.0, problem.optimal_losses),
        noise=np.where(without, 1e6, problem.noise),
    )
    for name, value in vars(evaluate(problem, labels)).items():
        np.testing.assert_array_equal(getattr(evaluate(odd, labels), name), value, err_msg=name)
