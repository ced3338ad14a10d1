"""Randomised response: its odds, its epsilon, its expectation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import InputError, generator
from atoll.fleet.agreed.randomised_response import answer_odds, estimate, respond

CLASSES = st.integers(2, 50)
EPSILONS = st.floats(0.01, 20)


@given(CLASSES, EPSILONS)
def test_no_answer_is_more_telling_than_epsilon_allows(classes: int, epsilon: float) -> None:
    own, other = answer_odds(classes, epsilon)
    assert own + (classes - 1) * other == pytest.approx(1)
    assert own / other == pytest.approx(np.exp(epsilon), rel=1e-6)


def test_a_large_epsilon_does_not_overflow() -> None:
    assert answer_odds(10, 5000.0) == (1.0, 0.0)


@given(CLASSES, EPSILONS, st.integers(0, 2**32))
def test_the_estimate_of_the_expected_answers_is_the_truth(classes: int, epsilon: float, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(0, 1000, classes)
    own, other = answer_odds(classes, epsilon)
    expected = counts * own + (counts.sum() - counts) * other
    assert estimate(expected, epsilon) == pytest.approx(counts.astype(float), abs=1e-6 * (1 + counts.sum()) / epsilon)


def test_answers_are_drawn_with_the_odds_that_are_stated() -> None:
    counts, epsilon, draws = np.array([600, 0, 300, 100]), 1.0, 4000
    own, other = answer_odds(4, epsilon)
    rng = generator(0, "test")
    answers = np.array([respond(counts, epsilon, rng) for _ in range(draws)])
    assert (answers.sum(axis=1) == 1000).all()
    variance = counts * own * (1 - own) + (1000 - counts) * other * (1 - other)
    error = answers.mean(axis=0) - (counts * own + (1000 - counts) * other)
    assert (np.abs(error) < 5 * np.sqrt(variance / draws)).all()
    assert answers.var(axis=0) == pytest.approx(variance, rel=0.15)
    assert np.array([estimate(row, epsilon) for row in answers]).mean(axis=0) == pytest.approx(counts, abs=5)


@pytest.mark.parametrize(("classes", "epsilon"), [(1, 1.0), (10, 0.0), (10, -1.0), (10, np.inf), (10, np.nan)])
def test_what_makes_no_sense_is_refused(classes: int, epsilon: float) -> None:
    with pytest.raises(InputError):
        answer_odds(classes, epsilon)
