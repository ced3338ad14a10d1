"""A GPU is waited for once a stack or client, however many steps: every wait would leave it idle.

Counted on the CPU: the values of tensors that Python asks for, each of which a GPU's queue would have to run dry for.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from atoll import LocalRule, Serial, Trainer, read_model
from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort, Executor
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.executors.weighted import Weighted
from atoll.local.rule import momentum, sgd
from tests.problems import classification, network

POPULATION = classification(clients=8, samples=12)


class Asked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what needs a tensor's value: ``item()``, a branch on a tensor, shapes that depend on values."""

    NEED_VALUES = (
        *(torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default),
        *(torch.ops.aten.masked_select.default, torch.ops.aten._unique2.default, torch.ops.aten.equal.default),
    )

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += function in self.NEED_VALUES
        return function(*args, **(kwargs or {}))


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """Count what needs values, and tensors that are handed to NumPy or fetched to the CPU."""
    with Asked() as asked, monkeypatch.context() as patched:
        for name in ("cpu", "numpy", "tolist"):
            patched.setattr(Tensor, name, _counted(getattr(Tensor, name), asked))
        yield asked


def _counted(function: Any, asked: Asked) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        asked.count += 1
        return function(*args, **kwargs)

    return call


def waits(
    monkeypatch: pytest.MonkeyPatch, kind: type[Executor], rule: LocalRule, clients: int, module: nn.Module
) -> int:
    """Return how often a cohort's training asks for values, after a first one has set everything up."""
    executor = kind(Trainer(module, POPULATION, rule, seed=3, by_hand=False))  # type: ignore[call-arg]
    start, ids = read_model(module), np.arange(clients)
    for event in range(2):
        with counting(monkeypatch) as asked:
            executor.train([Cohort(event, event, 0, 0, ids, np.ones(clients), float(clients), start)], average_models)
    return asked.count


def test_the_count_sees_what_needs_values(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = torch.ones(3)
    with counting(monkeypatch) as asked:
        ones.sum().item()
        bool(ones.sum() > 2)
        ones.nonzero()
        ones.cpu()
        ones + ones
    assert asked.count == 4


@pytest.mark.parametrize("optimizer", [sgd, momentum])
def test_a_stack_is_waited_for_as_often_whatever_its_clients_and_steps(
    monkeypatch: pytest.MonkeyPatch, optimizer: Any
) -> None:
    few, many = (LocalRule(optimizer, lr=0.1, steps=steps, batch_size=4) for steps in (2, 9))
    counts = {waits(monkeypatch, Stacked, rule, clients, network(seed=1)) for rule in (few, many) for clients in (2, 8)}
    assert len(counts) == 1
    assert counts.pop() <= 5


def test_one_by_one_a_client_is_waited_for_as_often_whatever_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (LocalRule(sgd, lr=0.1, steps=steps, batch_size=4) for steps in (2, 9))
    one, other = (waits(monkeypatch, Serial, rule, 4, network(seed=1)) for rule in (few, many))
    assert one == other <= 4 * 2


def test_a_weighted_pass_is_waited_for_as_often_whatever_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = LocalRule(sgd, lr=0.1, steps=1, batch_size=4)
    one, other = (waits(monkeypatch, Weighted, rule, clients, network(seed=1)) for clients in (2, 8))
    assert one == other <= 3
