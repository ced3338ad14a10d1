"""Digits whose labels contradict each other between groups."""

from dataclasses import replace

import numpy as np

from atoll.data.dataset import Dataset
from atoll.data.datasets import load
from atoll.support.limits import Positive
from atoll.support.seeds import generator


def permuted_digits(permutations: Positive = 4) -> Dataset:
    """Return scikit-learn's digits once for each planted group, whose classes have names of their own (Sattler 2020).

    Args:
        permutations: number of groups; the first has the true labels.
    """
    digits = load("digits")
    names = [generator(0, "permuted", group).permutation(digits.classes) for group in range(permutations)]
    names[0] = np.arange(digits.classes)
    each, group = range(permutations), np.arange(permutations)
    return replace(
        digits,
        name="permuted digits",
        inputs=np.concatenate([digits.inputs for _ in each]),
        targets=np.concatenate([own[digits.targets] for own in names]),
        test_inputs=np.concatenate([digits.test_inputs for _ in each]),
        test_targets=np.concatenate([own[digits.test_targets] for own in names]),
        groups=np.repeat(group, len(digits.inputs)),
        test_groups=np.repeat(group, len(digits.test_inputs)),
    )
