"""Steps captured as CUDA graphs: without a GPU by a stand-in that reads, like a graph, only what it has captured."""

import gc
import re
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from atoll import InputError, LocalRule, Stacked, Trainer, read_model
from atoll.aggregation.mean import average_models
from atoll.data.dataset import Dataset, Standard
from atoll.engine.cohorts import Cohort
from atoll.executors.stacked import graphs, stacked_executor
from atoll.executors.stacked.graphs import Graphs
from atoll.executors.stacked.memory import client_bytes
from atoll.executors.stacked.training import train_stack
from atoll.experiment.experiment import Experiment
from atoll.local.batches import preparation
from atoll.local.models import Model
from atoll.local.rule import momentum, sgd
from atoll.settings.validation import Settings
from atoll.support.errors import RunError
from tests.executors.test_launches import Launches
from tests.problems import classification, network
from tests.stand_in_graphs import captured, stand_in
from tests.tiers import thinned

POPULATION = classification(clients=40, samples=12)
SGD = LocalRule(sgd, lr=0.1, steps=3, batch_size=4)


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
    thinned(
        [
            SGD,
            LocalRule(momentum, lr=0.1, steps=3, batch_size="full"),
            replace(SGD, batch_size="full"),
            replace(SGD, proximal=0.1),
            replace(SGD, lr_decay=0.9),
        ]
    ),
)
def test_bits_are_those_of_steps_told_one_by_one(rule: LocalRule) -> None:
    sizes = [3, 5, 3, 3, 5]
    ours, theirs = trained(rule, sizes, Graphs()), trained(rule, sizes, None)
    assert len(captured) == 2  # one a size, however many steps and events
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_cohorts_of_many_sizes_share_graphs_and_their_bits_stay() -> None:
    sizes = [33, 36, 34, 35, 40, 37]
    ours, theirs = trained(SGD, sizes, Graphs()), trained(SGD, sizes, None)
    assert len(captured) == 2  # of 36 clients and of 40
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def in_cycles(made: list[weakref.ref[Any]], call: Any, examples: Any) -> Any:
    """Return what PyTorch's callables are like: in cycles, so that the collector alone frees them."""

    class Graphed:
        replay = staticmethod(stand_in(call, examples))

        def __call__(self, *tensors: Tensor) -> Any:
            return Graphed.replay(*tensors)

    made.append(weakref.ref(Graphed))
    return Graphed()


@pytest.mark.more
def test_graphs_let_go_of_are_freed_before_the_next_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Destroying a graph within a capture makes CUDA give that up."""
    made: list[weakref.ref[Any]] = []
    freed = []

    def cyclic(call: Callable[..., Any], examples: tuple[Tensor, ...]) -> Callable[..., Any]:
        freed.append(sum(each() is None for each in made))
        return in_cycles(made, call, examples)

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", cyclic)
    monkeypatch.setattr(graphs, "MOST", 1)
    gc.disable()
    try:
        trained(SGD, [3, 5, 3, 5], Graphs())
    finally:
        gc.enable()
    assert freed == [0, 1, 2, 3]


def test_a_stack_is_filled_up_within_its_memory() -> None:
    executor = Stacked(Trainer(network(), POPULATION, SGD, seed=3))
    executor.graphs = Graphs()
    executor.stack_bytes = 39 * client_bytes(executor.trainer, executor.fit, 4)
    cohort = Cohort(0, 0, 0, 0, np.arange(40), np.ones(40), 40.0, read_model(network()))
    executor.train([cohort], average_models)
    assert [next(iter(held.model.values())).shape[0] for held in executor.graphs._held.values()] == [36, 4]


def test_parts_of_one_size_are_not_put_over_each_other() -> None:
    """Where memory has run out, the parts of a stack are averaged when all are trained."""
    means = []
    for held in (Graphs(), None):
        executor = Stacked(Trainer(network(), POPULATION, SGD, seed=3))
        executor.graphs, executor.most_clients = held, 4
        cohort = Cohort(0, 0, 0, 0, np.arange(8), np.ones(8), 8.0, read_model(network()))
        means.append(executor.train([cohort], average_models)[0].model)
    assert all(torch.equal(means[0][name], means[1][name]) for name in means[1])


@pytest.mark.parametrize(("steps", "clients"), [(2, 4), (9, 4), (2, 40)])
def test_a_cohort_is_as_few_operations_however_many_steps_and_clients(steps: int, clients: int) -> None:
    rule, module = replace(SGD, steps=steps), network(seed=1)
    executor = Stacked(Trainer(module, POPULATION, rule, seed=3))
    executor.graphs = Graphs()
    for event in range(2):
        cohort = Cohort(event, event, 0, 0, np.arange(clients), np.ones(clients), float(clients), read_model(module))
        with Launches() as counted:
            executor.train([cohort], average_models)
    assert sum(counted.told.values()) <= 43


def test_a_graph_s_inputs_are_prepared_by_what_is_on_the_gpu() -> None:
    """Wide inputs too, such as times: another device than the processor shows what is copied to it."""
    inputs, labels = np.arange(40).reshape(20, 2), np.zeros(20, dtype=np.int64)
    standard = Standard((1.0, 2.0), (3.0, 4.0))
    data = Dataset("times", inputs, labels, inputs[:1], labels[:1], classes=2, standard=standard)
    prepare = preparation(data, torch.empty(0, device="meta"))
    with Launches() as counted:
        prepare(torch.empty(3, 2, dtype=torch.int64, device="meta"))
    assert counted.told["aten._to_copy.default"] == 1  # to the model's type


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


def test_a_capture_for_which_memory_runs_out_is_tried_with_fewer_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(call: Any, examples: Any) -> Any:
        if len(examples[0]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return stand_in(call, examples)

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", small)
    with pytest.warns(RuntimeWarning, match="out of memory with 8 clients in one stack; going on with at most 4"):
        ours = trained(SGD, [8], Graphs())
    assert all(torch.equal(ours[0][name], each) for name, each in trained(SGD, [8], None)[0].items())


def unasked(rule: LocalRule, sizes: list[int]) -> tuple[list[Model], Graphs]:
    """Return the models after cohorts whose graphs nobody asked for, and these."""
    held = Graphs(asked=False)
    return trained(rule, sizes, held), held


@pytest.mark.parametrize("rule", [SGD, replace(SGD, lr_decay=0.9), LocalRule(momentum, 0.1, steps=1, batch_size=4)])
def test_a_graph_nobody_asked_for_is_of_what_comes_for_the_third_time(rule: LocalRule) -> None:
    """Of steps that are captured one by one, that is the third step."""
    sizes = [5, 5, 3, 5, 5, 3]
    ours, _ = unasked(rule, sizes)
    once_a_stack = rule.is_constant and rule.optimizer is sgd
    assert len(captured) == (1 if once_a_stack or rule.steps == 1 else 2)
    for one, other in zip(ours, trained(rule, sizes, None), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_numbers_that_are_not_finite_count_as_the_same_bits() -> None:
    held = Graphs(asked=False)
    for _ in range(3):
        held.run(lambda model, batch: batch.log() + model["w"], {"w": torch.zeros(2)}, (torch.tensor([-1.0, 0.0]),))
    assert [len(each.graphs) for each in held._held.values()] == [1]


def test_no_more_are_captured_than_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 2)
    unasked(SGD, [3, 4, 5, 6] * 4)
    assert len(captured) == 2


@pytest.mark.parametrize("rule", thinned([SGD, replace(SGD, lr_decay=0.9)], 1))
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("operation not permitted when stream is capturing\nCUDA ..."), "RuntimeError: operation not"),
        (torch.OutOfMemoryError("CUDA out of memory"), "OutOfMemoryError: CUDA out of memory"),
        (None, "a graph of the model's steps gives other bits"),
    ],
)
def test_a_graph_nobody_asked_for_that_cannot_be_is_told_once_and_done_without(
    rule: LocalRule, error: Exception | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(call: Any, examples: Any) -> Any:
        captured.append(1)
        if error:
            raise error
        return lambda *tensors: tree_map(lambda each: each * (1 + 1e-12), call(*tensors))

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", wrong)
    with pytest.warns(RuntimeWarning) as warned:
        ours, held = unasked(rule, [3, 3, 3, 3, 5, 5, 5])
    (only,) = warned
    assert re.fullmatch(f"run.cuda_graphs = 'auto': .*{told}.*; going on without graphs", str(only.message))
    assert len(captured) == 1
    assert not held._held
    for one, other in zip(ours, trained(rule, [3, 3, 3, 3, 5, 5, 5], None), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_gradients_that_differ_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(call: Any, examples: Any) -> Any:
        return lambda *tensors: (lambda loss: loss.detach() + (loss - loss.detach()) * 2)(call(*tensors))

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", wrong)
    with pytest.warns(RuntimeWarning, match="a graph of the model's steps gives other bits"):
        unasked(replace(SGD, lr_decay=0.9), [3])
    with pytest.raises(RunError, match=r"run.cuda_graphs = true: .* \(a graph of the model's steps gives other bits\)"):
        trained(replace(SGD, lr_decay=0.9), [3], Graphs())


class Replayed(torch.autograd.Function):
    """Returns results, and gradients of the first of its inputs, that are at hand."""

    @staticmethod
    def forward(ctx: Any, results: Tensor, grads: Any, *inputs: Tensor) -> Tensor:
        ctx.grads = grads, len(inputs)
        return results

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        grads, inputs = ctx.grads
        found = grads() if callable(grads) else grads
        return None, None, *found, *[None] * (inputs - len(found))


@pytest.mark.parametrize("rule", [SGD, replace(SGD, lr_decay=0.9)])
def test_a_graph_that_does_nothing_is_seen(rule: LocalRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """As is PyTorch's if its capture's stream is another GPU's: what was to be captured is carried out at once."""

    def empty(call: Any, examples: Any) -> Any:
        results = tree_map(lambda each: each.detach().clone(), call(*examples))
        if leaves := [each for each in examples if each.requires_grad]:
            grads = torch.autograd.grad(call(*examples).sum(), leaves)
            return lambda *tensors: Replayed.apply(results, grads, *tensors)  # type: ignore[no-untyped-call]
        return lambda *tensors: results

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", empty)
    with pytest.warns(RuntimeWarning, match="a graph of the model's steps gives other bits"):
        ours, _ = unasked(rule, [3] * 5)
    for one, other in zip(ours, trained(rule, [3] * 5, None), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


class Keeps(torch.optim.SGD):
    """Steps by half of this gradient and half of the last, which it keeps as it is."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for own in self.param_groups[0]["params"]:
            own.add_(own.grad + self.state[own].get("last", own.grad), alpha=-self.param_groups[0]["lr"] / 2)
            self.state[own]["last"] = own.grad


def aliasing(call: Any, examples: Any) -> Any:
    """As PyTorch's graphs do, put each gradient where the last one was."""
    captured.append(1)
    leaves = [each for each in examples if each.requires_grad]
    fixed = [torch.zeros_like(each) for each in leaves]

    def replay(*tensors: Tensor) -> Any:
        with torch.no_grad():
            for own, given in zip(examples, tensors, strict=True):
                own.copy_(given)
        with torch.enable_grad():
            losses = call(*examples)
            total = losses.sum()

        def grads() -> list[Tensor]:
            found = torch.autograd.grad(total, leaves)
            return [own.copy_(each).detach() for own, each in zip(fixed, found, strict=True)]

        return Replayed.apply(losses.detach(), grads, *tensors)  # type: ignore[no-untyped-call]

    return replay


@pytest.mark.parametrize("optimizer", [Keeps, momentum])
def test_an_optimiser_may_keep_a_gradient(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", aliasing)
    rule = LocalRule(optimizer, lr=0.1, steps=6, batch_size=4)
    ours, held = unasked(rule, [3, 3])
    assert len(captured) == len(held._held) == 1
    for one, other in zip(ours, trained(rule, [3, 3], None), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("asked", [True, False])
def test_the_first_error_of_a_capture_is_told(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ending:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: Any) -> None:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def broken(*_: Any) -> None:
        with Ending():
            raise RuntimeError("Cannot copy between CPU and CUDA tensors")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", broken)
    told = "Cannot copy between CPU and CUDA tensors"
    with pytest.raises(RunError, match=told) if asked else pytest.warns(RuntimeWarning, match=told):
        trained(SGD, [3, 3, 3], Graphs(asked))


@pytest.mark.parametrize("fails", [True, False])
def test_the_stream_is_that_of_before_a_capture(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own context does not leave the capture's where the capture fails."""
    streams, cleared = ["the run's"], list[str]()

    def capture(call: Any, examples: Any) -> Any:
        streams.append("the capture's")
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        return call

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    own = "_cuda_clearCublasWorkspaces"  # so that no graph uses working memory that another asked for
    monkeypatch.setattr(torch._C, own, lambda: cleared.append(streams[-1]), raising=False)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    with suppress(RuntimeError):
        graphs._capture(lambda model, batch: batch, {"w": torch.zeros(2)}, (torch.zeros(1),))
    assert streams == ["the run's", "the capture's", "the run's"]
    assert cleared == ["the run's", "the run's"]


@pytest.mark.more
def test_graphs_let_go_of_are_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda *given: in_cycles(made, *given))
    gc.disable()
    try:
        _, held = unasked(SGD, [3, 3, 3])
        assert made[0]() is not None
        assert held.let_go()
        assert made[0]() is None
        assert not held.let_go()
    finally:
        gc.enable()


def test_where_memory_runs_out_graphs_go_before_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Stacked(Trainer(network(seed=1), POPULATION, SGD, seed=3))
    executor.graphs = held = Graphs(asked=False)
    cohort = Cohort(0, 0, 0, 0, np.arange(4), np.ones(4), 4.0, read_model(network(seed=1)))
    for _ in range(3):
        executor.train([cohort], average_models)
    assert held._held
    times = iter(range(9))

    def full_once(*given: Any) -> Any:
        if not next(times):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train_stack(*given)

    monkeypatch.setattr(stacked_executor, "train_stack", full_once)
    executor.train([cohort], average_models)
    assert not held._held
    assert executor.most_clients is None
    assert next(times) == 2


def test_large_stacks_are_neither_captured_nor_filled_up_unasked() -> None:
    """So that a run that had graphs and one that resumes it have the same stacks, the size alone decides."""
    for part, filled in ((16, 18), (15, 17)):
        executor = Stacked(Trainer(network(seed=1), POPULATION, SGD, seed=3))
        executor.graphs = held = Graphs(asked=False)
        executor.stack_bytes = part * 18 * client_bytes(executor.trainer, executor.fit, 4)
        cohort = Cohort(0, 0, 0, 0, np.arange(17), np.ones(17), 17.0, read_model(network(seed=1)))
        for _ in range(3):
            executor.train([cohort], average_models)
        sizes = [next(iter(each.model.values())).shape[0] for each in held._held.values()]
        assert sizes == ([filled] if filled == 18 else [])


class Scaled(nn.Linear):
    """Has a buffer that is no part of its state, which each round makes anew where losses are measured."""

    def __init__(self) -> None:
        super().__init__(4, 3, dtype=torch.float64)
        self.register_buffer("factor", torch.full((3,), 0.5, dtype=torch.float64), persistent=False)
        self.factor: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self.factor


def test_a_model_with_buffers_that_may_be_replaced_is_not_captured() -> None:
    trained(SGD, [3, 3], Graphs(), Scaled())
    assert captured == []


def test_a_gpu_is_needed() -> None:
    with pytest.raises(InputError, match=r"run.cuda_graphs = true: needs run.device = 'cuda', not 'cpu'"):
        Stacked(Trainer(network(), POPULATION, LocalRule(sgd, 0.1, 1, 4), seed=0), cuda_graphs=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cuda_graphs": True}, "run.cuda_graphs = true: needs"),
        ({"stack_bytes": 10}, "run.stack_bytes = 10: must be at"),
    ],
)
def test_what_a_stack_refuses_is_told_before_anything_is_written(change: dict[str, Any], told: str) -> None:
    settings = Settings.model_validate({"name": "x", "rounds": 1, "run": {"executor": "stacked", **change}})
    with pytest.raises(InputError, match=told):
        Experiment(settings).check()


@pytest.mark.parametrize("executor", ["auto", "serial"])
def test_graphs_are_refused_where_they_would_not_be_used(executor: str) -> None:
    settings = Settings.model_validate({"name": "x", "rounds": 1, "run": {"cuda_graphs": True, "executor": executor}})
    with pytest.raises(InputError, match=r"run.cuda_graphs = true: needs run.executor = 'stacked' on a GPU"):
        Experiment(settings).execution.make_executor()
