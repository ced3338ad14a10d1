"""Weighted sums of models and of updates: what counts where something was not sent."""

import torch

from atoll.aggregation.mean import add_updates, average_gradients, mean
from atoll.local.models import Model


def model(**values: float) -> Model:
    """A model of single numbers, `u` a moment of `w`, with a counter."""
    return {name.replace("u", "w@u"): torch.tensor(value) for name, value in values.items()} | {"n": torch.tensor(7)}


def test_an_update_counts_from_zero_where_nothing_was_sent() -> None:
    start = model(w=1.0)
    updates = [(0.5, model(w=9.0, u=4.0), model(w=5.0)), (2.0, model(w=6.0, u=3.0), model(w=5.0, u=1.0))]
    found = add_updates(start, [(weight, trained | {"n": torch.tensor(9)}, sent) for weight, trained, sent in updates])
    assert {name: tensor.item() for name, tensor in found.items()} == {"w": 5.0, "n": 7, "w@u": 6.0}
    assert start == model(w=1.0), "it is left as it was"


def test_gradients_of_the_whole_cohort_give_the_mean_to_the_bit() -> None:
    """Of zero the sign, too: a step from the start would lose it."""
    pairs = [(weight, {"w": torch.tensor([-0.0, 0.1])}) for weight in (1.0, 2.0)]
    found = average_gradients(pairs, {"w": torch.tensor([1.0, 1e8])}, 3.0)
    assert found["w"].numpy().tobytes() == mean(pairs)["w"].numpy().tobytes()
