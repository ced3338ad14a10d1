"""Deviations of clients with one class each."""

import numpy as np

from atoll.evaluation.constants import label_deviations


def test_deviations_from_class_shares() -> None:
    assert label_deviations(np.array([[4, 0], [0, 4]])).tolist() == [[0.5, -0.5], [-0.5, 0.5]]
