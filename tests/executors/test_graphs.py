"""Steps captured as CUDA graphs: without a GPU by a stand-in that reads, like a graph, only what it has captured."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll import InputError, LocalRule, Stacked, Trainer, read_model
from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort
from atoll.executors.stacked import graphs
from atoll.executors.stacked.graphs import Graphs
from atoll.experiment.experiment import Experiment
from atoll.local.models import Model
from atoll.local.rule import momentum, sgd
from atoll.settings.validation import Settings
from atoll.support.errors import RunError
from tests.problems import classification, network

POPULATION = classification(clients=8, samples=12)
captured: list[int] = []


def stand_in(call: Callable[..., Tensor], examples: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """Compute on the tensors of the capture, into which others are copied, as `torch.cuda.make_graphed_callables`."""
    captured.append(len(examples))

    def replay(*tensors: Tensor) -> Tensor:
        with torch.no_grad():
            for own, given in zip(examples, tensors, strict=True):
                assert own.shape == given.shape
                assert own is not given  # whose gradient would be added up on the stream of the capture
                if own.data_ptr() != given.data_ptr():
                    own.copy_(given)
        return call(*(given if given.requires_grad else own for own, given in zip(examples, tensors, strict=True)))

    return replay


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    captured.clear()
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", stand_in)


def trained(rule: LocalRule, sizes: list[int], held: Graphs | None, module: nn.Module | None = None) -> list[Model]:
    """Return the models after cohorts of these sizes, one after the other."""
    module = module or network(seed=1)
    executor = Stacked(Trainer(module, POPULATION, rule, seed=3))
    executor.graphs = held
    model, models = read_model(module), []
    for event, size in enumerate(sizes):
        cohort = Cohort(event, event, 0, 0, np.arange(size), np.ones(size), float(size), model)
        (update,) = executor.train([cohort], average_models)
        model = update.model
        models.append({name: tensor.clone() for name, tensor in model.items()})
    return models


@pytest.mark.parametrize(
    "rule",
    [
        LocalRule(sgd, lr=0.1, steps=3, batch_size=4, lr_decay=0.9),
        LocalRule(momentum, lr=0.1, steps=3, batch_size="full"),
        LocalRule(sgd, lr=0.1, steps=3, batch_size=4, proximal=0.1),
    ],
)
def test_bits_are_those_of_steps_told_one_by_one(rule: LocalRule) -> None:
    sizes = [3, 5, 3, 3, 5]
    ours, theirs = trained(rule, sizes, Graphs()), trained(rule, sizes, None)
    assert len(captured) == 2  # one a size, however many steps and events
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_the_graphs_of_the_stacks_trained_longest_ago_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 1)
    trained(LocalRule(sgd, lr=0.1, steps=2, batch_size=4), [3, 5, 3], Graphs())
    assert len(captured) == 3


def test_a_model_that_cannot_be_captured_ends_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors ...")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", refuse)
    with pytest.raises(RunError, match=r"run.cuda_graphs = true: the model's step cannot be captured \(operation not"):
        trained(LocalRule(sgd, lr=0.1, steps=2, batch_size=4), [3], Graphs())


def test_a_gpu_is_needed() -> None:
    with pytest.raises(InputError, match=r"run.cuda_graphs = true: needs run.device = 'cuda', not 'cpu'"):
        Stacked(Trainer(network(), POPULATION, LocalRule(sgd, 0.1, 1, 4), seed=0), cuda_graphs=True)


@pytest.mark.parametrize("executor", ["auto", "serial"])
def test_graphs_are_refused_where_they_would_not_be_used(executor: str) -> None:
    settings = Settings.model_validate({"name": "x", "rounds": 1, "run": {"cuda_graphs": True, "executor": executor}})
    with pytest.raises(InputError, match=r"run.cuda_graphs = true: needs run.executor = 'stacked' on a GPU"):
        Experiment(settings).execution.make_executor()
