"""What a GPU is told to do in a local step of a stack, counted on the processor: the same for any number of clients.

A small model's round takes as long as telling the GPU of its operations, so their number is a figure of speed. Views
are not counted: nothing is computed for them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from atoll import LocalRule, Stacked, Trainer, read_model
from atoll.aggregation.mean import average_models
from atoll.data.dataset import Dataset
from atoll.data.population import Population, make_population
from atoll.engine.cohorts import Cohort
from atoll.local.models import MODELS
from atoll.local.rule import momentum, sgd
from tests.tiers import thinned

SHAPES = {"mlp": (1, 28, 28), "cnn": (1, 28, 28), "alexnet": (3, 32, 32), "lr": (1, 28, 28)}
STEP = {"mlp": 19, "cnn": 38, "lr": 25, "alexnet": 52}  # launches of a local step of plain SGD
ROUND = {"mlp": 42, "cnn": 70, "lr": 56, "alexnet": 84}  # besides its steps: the stack made, checked, averaged

RULE = LocalRule(sgd, lr=0.1, steps=2, batch_size=4)


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that compute something, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.told: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not function.is_view and function.namespace == "aten" and "_unsafe_view" not in str(function):
            self.told[str(function)] += 1
        return function(*args, **(kwargs or {}))


def images(shape: tuple[int, ...], clients: int = 9) -> Population:
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, size=(10 * clients, *shape), dtype=np.uint8)
    labels = rng.integers(10, size=len(inputs))
    data = Dataset("images", inputs, labels, inputs[:1], labels[:1], classes=10, scale=1 / 255)
    return make_population(data, np.split(np.arange(len(inputs)), clients))


def launches(model: str, clients: int, rule: LocalRule, module: nn.Module | None = None) -> Counter[str]:
    """Return what a cohort's training computes, after a first one has set everything up."""
    torch.manual_seed(0)
    module = module or MODELS[model](SHAPES[model], 10)
    trainer, start = Trainer(module, images(SHAPES[model]), rule, seed=3), read_model(module)
    executor = Stacked(trainer, 1 << 40)  # in one stack
    ids = np.arange(clients)
    for event in range(2):
        with Launches() as counted:
            executor.train([Cohort(event, event, 0, 0, ids, np.ones(clients), float(clients), start)], average_models)
    return counted.told


@pytest.mark.more
@pytest.mark.parametrize("model", thinned(STEP))
def test_a_step_is_few_operations_however_many_clients_there_are(model: str) -> None:
    two, three, more = (
        launches(model, clients, replace(RULE, steps=steps)) for clients, steps in ((4, 2), (4, 3), (9, 2))
    )
    assert more == two
    step = three - two
    assert sum(step.values()) <= STEP[model], step
    assert sum(two.values()) - 2 * sum(step.values()) <= ROUND[model], two
    assert step["aten._foreach_add_.List"] == 1  # all clients' parameters move at once


@pytest.mark.parametrize("change", [{"optimizer": momentum}, {"proximal": 0.1}, {"batch_size": "full"}])
def test_other_rules_take_more_but_no_more_for_more_clients(change: dict[str, Any]) -> None:
    rule = replace(RULE, **change)
    assert launches("mlp", 4, rule) == launches("mlp", 9, rule)


def test_the_count_sees_what_is_computed_and_no_views() -> None:
    with Launches() as counted:
        ones = torch.ones(2, 3)
        (ones.mT.unsqueeze(0) + 1).sum()
    assert sum(counted.told.values()) == 3


def test_what_is_done_to_each_number_is_done_where_it_lies() -> None:
    """A dense layer leaves its outputs transposed, a convolution clients' channels side by side: neither is copied."""
    dense = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
    step = launches("mlp", 4, replace(RULE, steps=3), dense) - launches("mlp", 4, RULE, dense)
    assert step["aten.clone.default"] <= 1
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.MaxPool2d(2), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(100, 10))
    step = launches("cnn", 4, replace(RULE, steps=3), network) - launches("cnn", 4, RULE, network)
    assert step["aten.clone.default"] <= 3
