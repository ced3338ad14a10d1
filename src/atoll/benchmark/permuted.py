"""Digits whose labels contradict each other between groups."""

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

    def repeat(inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        groups = np.repeat(np.arange(permutations), len(inputs))
        return np.concatenate([inputs] * permutations), np.concatenate([own[targets] for own in names]), groups

    inputs, targets, groups = repeat(digits.inputs, digits.targets)
    test_inputs, test_targets, test_groups = repeat(digits.test_inputs, digits.test_targets)
    return Dataset(
        "permuted digits",
        inputs,
        targets,
        test_inputs,
        test_targets,
        classes=digits.classes,
        scale=digits.scale,
        groups=groups,
        test_groups=test_groups,
    )
