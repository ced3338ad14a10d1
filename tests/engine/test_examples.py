"""Weighted means and medians of numbers, by example."""

from atoll.engine.combining import weighted_mean, weighted_median


def test_weighted_numbers() -> None:
    assert weighted_mean([0.0, 4.0], [1.0, 3.0]) == 3.0
    assert weighted_median([5.0, 1e9, 1.0], [1.0, 1.0, 1.0]) == 5.0
    assert weighted_median([0.0, 4.0], [1.0, 1.0]) == 2.0
