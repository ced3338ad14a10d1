"""What a stack takes is what `run.stack_bytes` allows: the tensors that are alive at once, counted on the processor."""

import gc
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from atoll import LocalRule, Stacked, Trainer, read_model
from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort
from atoll.executors.stacked.memory import client_bytes
from atoll.local.models import MODELS
from atoll.local.rule import adam, momentum, sgd
from atoll.local.weights import count_bytes
from tests.executors.test_launches import images
from tests.tiers import thinned

SHAPES = {"mlp": (1, 28, 28), "cnn": (1, 28, 28), "alexnet": (3, 32, 32), "lr": (1, 28, 28)}
RULE = LocalRule(sgd, lr=0.01, steps=2, batch_size=8)
CARRIED = {"optimizer": adam, "carry_moments": True}
CLIENTS = 3


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bytes of storages that were made within it and are still there, and keeps the most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.there: dict[int, Any] = {}

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = {id(each.untyped_storage()) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        made = function(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, Tensor) and id(storage := each.untyped_storage()) not in before | self.there.keys():
                self.now += storage.nbytes()
                self.there[id(storage)] = weakref.finalize(storage, self._gone, id(storage), storage.nbytes())
        self.most = max(self.most, self.now)
        return made

    def _gone(self, key: int, size: int) -> None:
        self.there.pop(key, None)
        self.now -= size


def test_the_count_sees_what_is_made_and_what_is_let_go() -> None:
    with Alive() as alive:
        one = torch.ones(1000)
        view = one[:10]
        two = one + 1
        del one, two
        assert alive.now == 4000  # the view keeps the first
        three = torch.ones(1000)
        del view, three
    assert (alive.most, alive.now) == (8000, 0)


@pytest.mark.parametrize("batch_size", thinned([8, "full"], 1))
@pytest.mark.parametrize("change", thinned([{"optimizer": momentum, "proximal": 0.1}, {}, CARRIED], 1))
@pytest.mark.parametrize("model", thinned(SHAPES))
def test_a_stack_takes_no_more_than_is_estimated(model: str, change: dict[str, Any], batch_size: Any) -> None:
    torch.manual_seed(0)
    module = MODELS[model](SHAPES[model], 10)
    trainer = Trainer(module, images(SHAPES[model]), replace(RULE, batch_size=batch_size, **change), seed=3)
    executor, start = Stacked(trainer), read_model(module)
    (update,) = executor.train([Cohort(0, 0, 0, 0, np.arange(CLIENTS), np.ones(CLIENTS), 3.0, start)], average_models)
    cohort = Cohort(1, 1, 0, 0, np.arange(CLIENTS), np.ones(CLIENTS), 3.0, update.model)
    gc.collect()
    with Alive() as alive:
        executor.train([cohort], average_models)
    allowed = CLIENTS * client_bytes(trainer, executor.fit, 10 if batch_size == "full" else batch_size)
    assert alive.most <= allowed + count_bytes(update.model)  # the mean that is made of the stack lies beside it
    assert alive.most >= allowed / 4  # else GPUs would be left half empty
