"""Small functions on models, by example."""

import math

import torch

from atoll.aggregation.mean import add_updates, mean
from atoll.aggregation.reductions import update_norm
from atoll.aggregation.sum_tree import SumTree
from atoll.aggregation.usual_norms import limit_of, remember


def test_a_mean_of_models_and_a_sum_of_updates() -> None:
    one, nine, five = (torch.tensor(value) for value in (1.0, 9.0, 5.0))
    assert mean([(1.0, {"w": torch.tensor(0.0)}), (3.0, {"w": torch.tensor(4.0)})]) == {"w": torch.tensor(3.0)}
    assert add_updates({"w": one}, [(0.5, {"w": nine}, {"w": five})]) == {"w": torch.tensor(3.0)}
    assert update_norm({"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([0.0, 0.0])}) == 5.0


def test_a_tree_of_two_models() -> None:
    tree = SumTree()
    for value in (1.0, 5.0):
        tree.add(1.0, {"w": torch.tensor(value)})
    assert tree.total().mean() == {"w": torch.tensor(3.0)}


def test_usual_norms() -> None:
    assert limit_of(((1.0, 0), (1.0, 1), (9e11, 2))) == 10.0
    assert limit_of(((1.0, 0), (3.0, 1))) == 300.0
    assert limit_of(((9e11, 0),)) == math.inf
    assert len(remember(((1.0, 3),) * 99, ((2.0, 4), (2.0, 5)))) == 100
