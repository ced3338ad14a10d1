"""The order of sums: by leaves and in pairs, to the same bits however subtrees are cut out of it."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from atoll.aggregation.mean import Sum, average_gradients, average_models, mean
from atoll.aggregation.sum_tree import LEAF, SumTree, subtree_at
from atoll.local.models import Model

Pairs = Sequence[tuple[float, Model | None]]


def some_models(count: int, seed: int = 0, lost: float = 0.0) -> Pairs:
    """Weights and models in single precision; a share of the models does not count."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(count, 5)).astype(np.float32)
    return [
        (
            float(rng.integers(1, 99)),
            None if rng.random() < lost else {"w": torch.from_numpy(row), "n": torch.tensor(i)},
        )
        for i, row in enumerate(values)
    ]


def one_by_one(pairs: Pairs) -> Tensor:
    total = None
    for weight, model in pairs:
        if model is not None:
            total = model["w"] * weight if total is None else total.add(model["w"], alpha=weight)
    return torch.zeros(5) if total is None else total


def by_hand(pairs: Pairs) -> Tensor:
    """The twin: levels are lists, from the leaves up, until one sum is left."""
    level = [one_by_one(pairs[low : low + LEAF]) for low in range(0, len(pairs), LEAF)]
    while len(level) > 1:
        level = [sum(level[low + 1 : low + 2], level[low]) for low in range(0, len(level), 2)]
    return level[0]


def summed(pairs: Pairs) -> Sum:
    tree = SumTree()
    for weight, model in pairs:
        tree.add(weight, model)
    return tree.total()


@given(st.integers(1, 9 * LEAF), st.sampled_from([0.0, 0.3, 0.97]))
def test_the_sum_is_that_of_the_levels_by_hand(count: int, lost: float) -> None:
    pairs = some_models(count, lost=lost)
    total = summed(pairs)
    there = [(weight, model) for weight, model in pairs if model is not None]
    assert total.weight == sum(weight for weight, _ in there)
    if there:
        assert torch.equal(total.model["w"], by_hand(pairs))
        assert total.model["n"] == there[0][1]["n"]  # counters are the first model's
    else:
        assert total.model == {}


@given(st.integers(1, 9 * LEAF), st.data(), st.sampled_from([0.0, 0.5]))
def test_subtrees_summed_elsewhere_give_the_same_bits(count: int, data: st.DataObject, lost: float) -> None:
    pairs = some_models(count, lost=lost)
    tree, place = SumTree(), 0
    while place < count:
        most = data.draw(st.integers(1, 8 * LEAF))
        if span := subtree_at(place, count, most.__ge__):
            tree.join(span, summed(pairs[place : place + span]))
        else:
            tree.add(*pairs[place])
        place += span or 1
    found, expected = tree.total(), summed(pairs)
    assert found.weight == expected.weight
    assert found.model.keys() == expected.model.keys()
    assert all(torch.equal(tensor, expected.model[name]) for name, tensor in found.model.items())


@pytest.mark.parametrize("count", [1, 2, LEAF - 1, LEAF])
def test_a_cohort_of_one_leaf_is_summed_one_by_one_and_a_larger_one_is_not(count: int) -> None:
    assert torch.equal(summed(some_models(count)).mean()["w"], mean(some_models(count))["w"])  # type: ignore[arg-type]
    larger = some_models(20 * LEAF)
    assert not torch.equal(summed(larger).model["w"], one_by_one(larger))


@pytest.mark.more
def test_sums_are_nearer_to_the_exact_ones_than_one_by_one() -> None:
    """A thousand models in single precision: errors against `math.fsum`, in units of the last place."""
    errors: dict[str, list[float]] = {"tree": [], "one by one": []}
    for seed in range(20):
        pairs = [(weight, {"w": model["w"] + 3}) for weight, model in some_models(1_000, seed) if model is not None]
        exact = [math.fsum(weight * float(model["w"][i]) for weight, model in pairs) for i in range(5)]
        for name, found in (("tree", summed(pairs).model["w"]), ("one by one", one_by_one(pairs))):
            errors[name] += [abs(float(x) - e) / np.spacing(np.float32(e)) for x, e in zip(found, exact, strict=True)]
    assert max(errors["tree"]) < 4
    assert np.mean(errors["tree"]) < 0.2 * np.mean(errors["one by one"])


def test_models_are_left_as_they_were_and_a_mean_leaves_the_sum() -> None:
    pairs = some_models(3 * LEAF)
    before = [model["w"].clone() for _, model in pairs if model is not None]
    total = summed(pairs)
    assert torch.equal(total.mean()["w"], total.mean()["w"])
    for (_, model), kept in zip(pairs, before, strict=True):
        assert model is not None
        assert torch.equal(model["w"], kept)


def test_rules_that_need_only_the_mean_take_a_sum_as_they_take_models() -> None:
    pairs = [(weight, {"w": model["w"]}) for weight, model in some_models(LEAF) if model is not None]
    start, whole = {"w": torch.ones(5)}, 2 * sum(weight for weight, _ in pairs)
    for rule in (average_models, average_gradients):
        assert torch.equal(rule(summed(pairs), start, whole)["w"], rule(pairs, start, whole)["w"])
    ((weight, only),) = summed(pairs)  # what a user's rule sees
    assert weight == whole / 2
    assert torch.equal(only["w"], mean(pairs)["w"])


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 20))
def test_a_subtree_begins_where_one_does_and_reaches_no_further_than_needed(
    clients: int, place: int, most: int
) -> None:
    sizes = [subtree_at(place, clients, (leaves * LEAF).__ge__) for leaves in range(most)]
    assert all(one <= other for one, other in pairwise(sizes))
    for span in filter(None, sizes):
        assert place % span == 0
        assert span == LEAF or place + span // 2 < clients  # nothing is smaller than a leaf
        assert place + 1 < clients
