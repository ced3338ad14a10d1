"""Tests of ranks, on numbers of Demsar (2006)."""

from atoll.benchmark.standings import critical_difference, friedman_p


def test_tests_of_ranks() -> None:
    assert round(critical_difference(5, 30), 2) == 1.11
    assert round(friedman_p([3.143, 2.000, 2.893, 1.964], 14), 3) == 0.02
