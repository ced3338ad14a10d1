"""Measure how much of a client's step is matrix products and convolutions, and how fast these kernels are alone.

Run:  python benchmarks/roofline.py [--only TEXT] [--turns 30]

For each model of the benchmark, in float32 and bfloat16, in one thread: the operations of a step and the bytes that its
products must read and write at least; the seconds of each product's kernels alone, forward and backward, on data that
lie ready; and those of the whole step. Everything takes turns, and so does the float32 product of two matrices of 1024
x 1024, whose rate is the unit: other programs on the machine slow all alike. Seconds are the thread's processor time.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from bench import CASES, Case
from bench.contenders import make_module, make_trainer
from bench.flops import count_flops
from torch import Tensor, nn

from atoll.local.task import ClientTask
from atoll.local.weights import place, read_model
from atoll.support.process import keep_freed_memory

SIDE, STEPS = 1024, 20
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Work = Callable[[], Any]


@dataclass(frozen=True)
class Kernels:
    """The products of a step, and the bytes of their inputs and outputs."""

    works: list[Work]
    moved: int


def kernels_of(case: Case, kind: torch.dtype) -> Kernels:
    """Return each product's kernels, forward and backward, as the step calls them."""
    works: list[Work] = []
    moved = 0
    module = place(make_module(case))
    values = torch.rand(case.batch_size, *case.shape)
    is_first = True
    for layer in module.children():
        entering, values = values, layer(values).detach()
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        weight, bias = (tensor.detach().to(kind) for tensor in layer.parameters())
        x = entering.to(kind)
        slopes = torch.randn_like(values).to(kind)
        works += (
            _linear(x, weight, bias, slopes, is_first)
            if isinstance(layer, nn.Linear)
            else _conv(x, weight, bias, slopes, layer.padding, is_first)
        )
        moved += 3 * weight.nbytes + (2 if is_first else 3) * x.nbytes + 3 * slopes.nbytes
        is_first = False
    return Kernels(works, moved)


def _linear(x: Tensor, weight: Tensor, bias: Tensor, slopes: Tensor, is_first: bool) -> list[Work]:
    forward = [lambda: nn.functional.linear(x, weight, bias), lambda: slopes.T @ x]
    return forward if is_first else [*forward, lambda: slopes @ weight]


def _conv(x: Tensor, weight: Tensor, bias: Tensor, slopes: Tensor, padding: Any, is_first: bool) -> list[Work]:
    wanted = [not is_first, True, True]
    rest = (list(bias.shape), (1, 1), padding, (1, 1), False, (0, 0), 1, wanted)
    return [
        lambda: nn.functional.conv2d(x, weight, bias, padding=padding),
        lambda: torch.ops.aten.convolution_backward(slopes, x, weight, *rest),
    ]


def steps_of(case: Case, precision: str) -> Work:
    """Return a client's training, with a start and an end: `case.steps` steps."""
    trainer = make_trainer(case, make_module(case), precision=precision)
    task = ClientTask(0, 0, 0, 0, 0, read_model(trainer.module))
    return lambda: trainer.train(task)


def measure(works: dict[str, list[Work]], turns: int) -> dict[str, float]:
    """Return the median processor seconds of each list of works, which take turns; a first turn does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns + 1):
        for name, each in works.items():
            began = time.thread_time()
            for work in each:
                work()
            seconds[name].append(time.thread_time() - began)
    return {name: statistics.median(each[1:]) for name, each in seconds.items()}


def show(case: Case, turns: int) -> None:
    """Print a case's rows."""
    one, other = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    works: dict[str, list[Work]] = {"matrix product": [lambda: one @ other]}
    kernels = {name: kernels_of(case, kind) for name, kind in PRECISIONS.items()}
    for name, own in kernels.items():
        works |= {f"{name} kernels": own.works, f"{name} step": [torch.enable_grad()(steps_of(case, name))]}
    with torch.no_grad():
        seconds = measure(works, turns)
    unit = 2 * SIDE**3 / seconds["matrix product"]
    operations = count_flops(case) / case.clients / case.steps / case.cohorts / case.clusters
    print(f"{case.name}: {operations / 1e6:.0f} million operations a step; matrix product {unit / 1e9:.0f} GFLOP/s")
    for name, own in kernels.items():
        alone, step = seconds[f"{name} kernels"], seconds[f"{name} step"] / case.steps
        print(
            f"  {name:9} kernels {1e3 * alone:7.2f} ms, {operations / alone / unit:5.0%} of the product's rate, "
            f"{own.moved / alone / 1e9:5.1f} GB/s; step {1e3 * step:7.2f} ms, {operations / step / unit:5.0%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cases with TEXT in their name")
    parser.add_argument("--turns", type=int, default=30, help="of each measurement")
    given = parser.parse_args()
    cases = {case.model: replace(case, steps=STEPS) for case in CASES if given.only in case.name}
    if not cases or given.turns < 1:
        parser.error(f"--only {given.only} --turns {given.turns}: needs a case of the benchmark, and a turn")
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    for case in cases.values():
        show(case, given.turns)


if __name__ == "__main__":
    main()
