"""Small functions of clusterings, by example."""

import numpy as np

from atoll.clustering.clustering import Clustering, without_empty
from atoll.clustering.feduc.greedy import choose
from atoll.clustering.feduc.incremental.decasy import candidate_rows


def test_empty_clusters_are_left_out() -> None:
    assert without_empty(Clustering(np.array([2, 0, 2, -1]), 3)).labels.tolist() == [1, 0, 1, -1]


def test_ties_of_bounds_go_to_the_shorter_completion() -> None:
    assert choose(np.array([2.0, 1.0, 1.0]), np.array([1.0, 5.0, 4.0]), np.array([True, True, True])) == 2


def test_each_candidate_is_tried_in_its_own_row() -> None:
    assert candidate_rows(np.array([1.0, 2.0]), np.array([5.0, 6.0])).tolist() == [[5, 2], [1, 6]]
