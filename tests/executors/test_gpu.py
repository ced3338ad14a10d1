"""On a GPU, where there is one: the same models as on the CPU, the same bits with graphs, and no TF32 unasked."""

import importlib.util
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from bench.contenders import make_executor_round, make_module, make_trainer
from bench.work import Case

from atoll import Serial, Stacked
from atoll.executors.ray.ray_executor import Ray
from atoll.executors.stacked.draws import Draws
from atoll.local.models import Model
from atoll.local.precision import Precision
from atoll.local.task import ClientTask
from atoll.local.weights import read_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CASES = [Case("mlp", 3, steps=3), Case("cnn", 3, steps=2), Case("alexnet", 3, steps=2), Case("lr", 4, steps=1)]


def rounds(
    case: Case,
    kind: Any,
    device: str,
    precision: Precision = "float32",
    by_hand: bool = True,
    events: int = 2,
    **named: Any,
) -> Model:
    """Return the model after so many rounds, on the CPU."""
    module = make_module(case)
    trainer = make_trainer(case, module, device=device, precision=precision, by_hand=by_hand)
    train = make_executor_round(case, kind(trainer, **named))
    model = {name: tensor.to(device) for name, tensor in read_model(module).items()}
    for _ in range(events):
        model = train(model)
    return {name: tensor.cpu() for name, tensor in model.items()}


def difference(one: Model, other: Model) -> float:
    """Return the largest difference of two models' numbers, as a share of the largest number."""
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max()) for name in other)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_stack_is_trained_as_clients_one_by_one_on_the_cpu(case: Case) -> None:
    assert difference(rounds(case, Stacked, "cuda"), rounds(case, Serial, "cpu")) < 1e-4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_two_threads_on_a_gpu_and_the_processor_stand_in_for_two_gpus(case: Case) -> None:
    one, again = (rounds(case, Stacked, "cuda", others=["cpu"]) for _ in range(2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert difference(one, rounds(case, Serial, "cpu")) < 1e-4


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_streams_repeat_their_bits_with_and_without_graphs(case: Case, by_hand: bool) -> None:
    plain, again, *graphs = (
        rounds(case, Stacked, "cuda", by_hand=by_hand, others=["cuda"], cuda_graphs=cuda_graphs, events=4)
        for cuda_graphs in (False, False, "auto", True)
    )
    assert all(torch.equal(plain[name], other[name]) for other in (again, *graphs) for name in plain)
    assert difference(plain, rounds(case, Serial, "cpu", events=4)) < 1e-4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_graphs_and_repeats_give_the_same_bits(case: Case) -> None:
    """Of all steps, or, where steps are an optimiser's, of one."""
    theirs = rounds(case, Stacked, "cuda", cuda_graphs=False, events=4)
    for cuda_graphs, by_hand in ((False, True), ("auto", True), ("auto", False), (True, True), (True, False)):
        with warnings.catch_warnings(action="error", category=RuntimeWarning):  # of graphs that are done without
            ours = rounds(case, Stacked, "cuda", by_hand=by_hand, cuda_graphs=cuda_graphs, events=4)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_batches_are_drawn_there_as_on_the_cpu() -> None:
    trainer = make_trainer(CASES[0], make_module(CASES[0]), device="cuda")
    draws = Draws.of(trainer, 1 << 30)
    tasks = [ClientTask(3, 0, 0, 0, client, {}) for client in range(3)]
    assert draws is not None
    theirs = np.concatenate([trainer.draw_rows(task) for task in tasks], axis=1)
    assert draws.rows(draws.begin(tasks)).tolist() == theirs.tolist()


def test_a_captured_stack_that_is_filled_up_gives_the_same_model() -> None:
    """To rounding: a stack of 18 clients may take other kernels than one of 17."""
    case = Case("mlp", 17, steps=3)
    assert difference(rounds(case, Stacked, "cuda", cuda_graphs=True), rounds(case, Serial, "cpu")) < 1e-4


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_two_workers_of_ray_on_one_gpu_give_the_bits_of_one_process(case: Case) -> None:
    with Ray(make_trainer(case, make_module(case), device="cuda"), 2, on_gpus=True) as executor:
        ours = rounds(case, lambda _: executor, "cuda")
    theirs = rounds(case, Serial, "cuda")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_rounded_products_are_rounded_and_no_others(cuda_graphs: bool) -> None:
    exact = rounds(CASES[1], Serial, "cpu")
    bounds: dict[Precision, tuple[float, float]] = {"tf32": (1e-6, 1e-2), "bfloat16": (1e-5, 1e-1)}
    for precision, (least, most) in bounds.items():
        assert least < difference(rounds(CASES[1], Stacked, "cuda", precision, cuda_graphs=cuda_graphs), exact) < most
