"""CFL-MGD's Theorem 1: against the printed formulas worked by hand, and on a mixed regression that meets it all."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Dataset, InputError, LocalRule, Serial, Trainer, cfl_mgd, generator, init, make_population, train
from atoll.evaluation.scores import parameter_error
from atoll.local.models import linear
from atoll.local.rule import sgd
from examples.bounds import PROOF_CONSTANTS, CflMgdTerms, cfl_mgd_bound

TERMS = CflMgdTerms(
    rounds=4,
    clients=8,
    samples=2,
    clusters=2,
    least_share=0.25,
    parameters=3,
    smoothness=2.0,
    convexity=1.0,
    distance=2.0,
    start_error=0.1,
    largest_optimum=1.0,
    loss_deviation=4.0,
    gradient_deviation=3.0,
    beta=0.5,
    lambdas=(0.5, 0.1, 0.125, 0.25, 0.2),
    constants=(1.0, 2.0, 3.0, 5.0, 7.0, 11.0, 13.0),
)


def test_it_is_the_printed_sum() -> None:
    """(A36), each term worked out with the numbers above in its place."""
    m_n, terms = 16, []
    terms.append(2 * 3 / (0.5 * 2 * math.sqrt(0.25 * m_n)))
    terms.append(2 * 16 / (1 * 0.125 * 16 * 2))
    terms.append(3 * 3 * 4 * math.sqrt(2) / (0.1 * 1 * 2 * 4 * 2 * math.sqrt(8 * 0.125)))
    terms.append(5 * 0.5 * 3 * math.sqrt(0.25 * 4) / (0.25 * 0.5 * 2 * math.sqrt(m_n)))
    terms.append(7 * 0.25)
    terms.append(11 * 0.5 * 16 / (1 * 0.125 * 16 * 2))
    terms.append(13 * 0.5 * 4 * 3 * math.sqrt(2 * 4) / (0.2 * 1 * 2 * 4 * 2 * 0.5 * math.sqrt(8 * 0.125)))
    found = cfl_mgd_bound(TERMS)
    assert terms[:2] == [3.0, 8.0]
    assert terms[3:6] == [7.5, 1.75, 22.0]
    assert found.rho_0 == pytest.approx(sum(terms), rel=1e-14)
    assert found.lr == 0.5
    assert found.contraction == 1 - 1 / 64
    assert found.rho == pytest.approx(16 * 2 * sum(terms) / 0.25, rel=1e-14)
    assert found.bound == pytest.approx((63 / 64) ** 4 * 0.1 + 64 * sum(terms), rel=1e-14)
    assert found.failure == pytest.approx(2 * (0.5 + 0.2 + 0.25 + 0.25 + 0.4 + 4 * math.exp(-2)), rel=1e-14)
    assert found.rounds_needed == 0  # rho exceeds Delta / 2


def test_after_the_rounds_needed_its_bounds_agree() -> None:
    """(A39) at that T is at most rho, as (A40) and (A41) conclude."""
    small = replace(TERMS, loss_deviation=1e-6, gradient_deviation=1e-6, constants=(1, 1, 1, 1, 0, 1, 1))
    basin = math.sqrt(0.5) * 2 / 4
    needed = cfl_mgd_bound(small).rounds_needed
    assert needed > 200
    at_end = cfl_mgd_bound(replace(small, rounds=math.ceil(needed), start_error=basin))
    assert at_end.bound <= at_end.rho


def test_conditions_that_do_not_hold_are_named() -> None:
    unmet = cfl_mgd_bound(replace(TERMS, start_error=0.5, largest_optimum=1.5, parameters=5, samples=1)).unmet
    for words in (
        "start_error = 0.5 exceeds sqrt(mu / L) Delta / 4 = 0.354",
        "exceeds (l / 32) (mu / L)^(3 / 2) Delta = 0.00552",
        "largest_optimum = 1.5 exceeds its limit = 1",
        "n' = 1 is below P sigma^2 / (mu^2 Delta^4) = 2",
        "l m n' = 2 is below d = 5",
        "T P lambda_5 = 17.1 is not below its limit = 1",
    ):
        assert sum(words in each for each in unmet) == 1, (words, unmet)
    assert len(unmet) == 6


def test_as_printed_its_conditions_never_hold() -> None:
    """rho_0 >= c_4 l = l / 4, but must not exceed (l / 32) Delta, and optima of norm 1 are at most 2 apart."""
    best = replace(TERMS, smoothness=1.0, loss_deviation=0.0, gradient_deviation=0.0, constants=PROOF_CONSTANTS)
    assert [each.partition(" ")[0] for each in cfl_mgd_bound(best).unmet] == ["rho_0", "T"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lambdas": (0.1, 0.1)}, r"lambdas = \[0.1, 0.1\]: must be five"),
        ({"lambdas": (0.1, 0.1, 0.1, 0.1, 0.0)}, "between 0 and 1"),
        ({"constants": (1.0,)}, "must be seven"),
        ({"convexity": 3.0}, "convexity = 3: must be above 0 and at most smoothness = 2"),
        ({"beta": 1.0}, "beta = 1: must be at least 0"),
        ({"least_share": 0.6}, "least_share = 0.6: must be above 0 and at most 1 / 2"),
    ],
)
def test_values_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TERMS, **changes)


CLIENTS, FRESH, ROUNDS, NOISE, START = 120, 100, 20, 0.002, 0.5


def measured_errors(seed: int) -> list[float]:
    """Two groups y = x theta + noise with theta = 1 and -1, and x = 1 or -1: then L = mu = 1, and Delta = 2."""
    rng = generator(seed, "regression")
    samples = CLIENTS * FRESH * 2 * ROUNDS
    x = rng.choice([-1.0, 1.0], size=(samples, 1))
    groups = np.repeat([0, 1], samples // 2)
    y = x[:, 0] * np.array([1.0, -1.0])[groups] + NOISE * rng.normal(size=samples)
    planted = np.array([[1.0], [-1.0]])
    data = Dataset("two", x, y, x[:2], y[:2], 0, loss="squared", groups=groups, test_groups=groups[:2], planted=planted)
    population = make_population(data, np.arange(samples).reshape(CLIENTS, -1))
    rule = LocalRule(sgd, 1.0, 1, "full")
    method = cfl_mgd(population, rule, ROUNDS, 2, beta=0.0, option="gradients", fraction=1.0, resample=True)
    executor = Serial(Trainer(linear((1,), 1, bias=False).double(), population, method.rule, seed))
    starts = [{"1.weight": torch.tensor([[start]], dtype=torch.float64)} for start in (1 - START, -1 + START)]
    state = init(method, *starts)
    return [parameter_error(step.state.starts, planted) for step in train(method, executor, state)]


def terms_of_the_regression(rounds: int) -> CflMgdTerms:
    """sigma and v at the models of the run, which stay within Delta / 4 of an optimum, so 5 / 4 Delta of the other."""
    farthest = 2.5
    return CflMgdTerms(
        rounds=rounds,
        clients=CLIENTS,
        samples=FRESH,
        clusters=2,
        least_share=0.5,
        parameters=1,
        smoothness=1.0,
        convexity=1.0,
        distance=2.0,
        start_error=START,
        largest_optimum=1.0,
        loss_deviation=(farthest**2 * NOISE**2 + NOISE**4 / 2) ** 0.5,
        gradient_deviation=NOISE,
        beta=0.0,
        lambdas=(0.008, 0.001, 0.002, 1e-9, 1e-9),
        constants=(*PROOF_CONSTANTS[:4], 0.0, *PROOF_CONSTANTS[5:]),  # beta = 0: nothing is left of what c_4 bounds
    )


@pytest.mark.more
def test_where_all_conditions_hold_the_error_is_below_the_bound() -> None:
    bounds = [cfl_mgd_bound(terms_of_the_regression(t + 1)) for t in range(ROUNDS)]
    assert all(bound.unmet == () for bound in bounds)
    found = measured_errors(0)
    assert all(error <= bound.bound for error, bound in zip(found, bounds, strict=True))
    before = [START, *found[:-1]]
    assert all(e <= bounds[0].contraction * b + bounds[0].rho_0 for e, b in zip(found, before, strict=True))
    assert bounds[-1].bound < START  # it says something
