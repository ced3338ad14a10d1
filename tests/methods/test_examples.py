"""Small functions of methods, by example."""

import numpy as np
import pytest

from atoll.methods.papers.cfl import bipartition
from atoll.methods.papers.pacfl import distances_between


def test_the_bipartition_sets_the_other_direction_apart() -> None:
    second, similarity = bipartition(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]))
    assert (second.tolist(), similarity) == ([False, True, False], 0.0)


def test_angles_between_signatures_of_one_class() -> None:
    x, y = [[1.0], [0.0]], [[0.0], [1.0]]
    assert distances_between(np.array([[x], [x], [y]]), "sum") == pytest.approx([0, 90, 90])
