"""Small functions on data, by example."""

import numpy as np

from atoll.data.array_inputs import kind_of
from atoll.data.datasets import load
from atoll.data.dealing.class_counts import exact_counts, major_shares
from atoll.data.standardise import standardise


def test_values_in_words() -> None:
    assert kind_of(np.zeros((2, 3))) == "an array of float64 with shape [2, 3]"
    assert (kind_of(None), kind_of("a")) == ("nothing", "'str'")


def test_class_counts() -> None:
    assert major_shares(np.array([1]), 3, 0.5).tolist() == [[0.25, 0.5, 0.25]]
    assert exact_counts(np.array([[0.5, 0.25, 0.25]]), 5, np.array([0])).tolist() == [[3, 1, 1]]


def test_moments_in_words() -> None:
    assert str(standardise(load("digits"), "pool").standard) == "less 0.3058, over 0.3762"
