"""How far from the optimum, by plain enumeration, the greedy pass and the local search end."""

from itertools import product

import numpy as np
import pytest

from atoll import InputError
from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.greedy import feduc_labels
from atoll.clustering.feduc.problem import PATTERNS, Pattern, Problem
from atoll.clustering.feduc.refine import refine
from atoll.network.completion import completion_of
from atoll.support.arrays import Floats
from tests.clustering.test_feasible import small_problem
from tests.tiers import thinned

patterns = pytest.mark.parametrize("pattern", PATTERNS)


def least_bound(problem: Problem) -> float:
    """The least bound over every assignment within the limits."""
    least = np.inf
    for labels in map(np.array, product(range(problem.network.aggregators), repeat=problem.network.clients)):
        if (completion_of(problem.network, labels) <= problem.limits).all():
            least = min(least, evaluate(problem, labels).bound)
    return float(least)


def gaps(pattern: Pattern, instances: int, clients: int) -> Floats:
    """Bounds of the greedy pass and of the local search after it, as ratios to the optimum, [instances, 2]."""
    found = []
    for seed in range(1000):
        problem = small_problem(seed, pattern, clients, tightness=float(np.random.default_rng(seed).uniform(0.7, 1.5)))
        try:
            labels = feduc_labels(problem)
        except InputError:
            continue
        optimum = least_bound(problem)
        refined = refine(problem, labels)
        assert optimum <= evaluate(problem, refined).bound <= evaluate(problem, labels).bound
        found.append([evaluate(problem, labels).bound / optimum, evaluate(problem, refined).bound / optimum])
        if len(found) == instances:
            break
    return np.array(found)


def tell(pattern: Pattern, ratios: Floats) -> None:
    for name, ratio in zip(("greedy", "refined"), ratios.T, strict=True):
        optimal = (ratio < 1 + 1e-6).mean()
        print(f"{pattern:7} {name:8} optimal {optimal:4.0%}  bound / optimum: mean {ratio.mean():.3f}", end="  ")
        print(f"median {np.median(ratio):.3f}  worst {ratio.max():.3f}")


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 1))
def test_refining_closes_a_part_of_the_greedy_gap(pattern: Pattern) -> None:
    ratios = gaps(pattern, instances=15, clients=5)
    tell(pattern, ratios)
    greedy, refined = ratios.mean(axis=0)
    assert 1 <= refined < greedy


@pytest.mark.slow
@patterns
def test_refining_is_more_often_optimal_than_the_greedy_pass(pattern: Pattern) -> None:
    ratios = gaps(pattern, instances=100, clients=6)
    tell(pattern, ratios)
    optimal = (ratios < 1 + 1e-6).mean(axis=0)
    assert optimal[1] > optimal[0]
    assert np.median(ratios[:, 1]) < 1.02 < np.median(ratios[:, 0]) + 0.01
