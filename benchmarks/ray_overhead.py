"""Measure the cost of the executor `ray` against `cores`, with two workers on this machine.

Run:  python benchmarks/ray_overhead.py [--out DIR] [--turns N]

Two measures, the executors taking turns, medians over the turns:
- seconds of an event of 20 clients that train nothing, with a model of 6.6 MB: all of it is the executors' cost;
- seconds of an event of 20 clients with AlexNet on images of CIFAR-10's size, and their ratio.
The exit code is 1 if `ray` takes more than 1.5 times as long as `cores` on AlexNet. With --out it writes
ray-overhead.json.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from atoll import Dataset, LocalRule, Trainer, make_population
from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort, Executor
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.ray.ray_executor import Ray
from atoll.local.models import MODELS, Model, dense
from atoll.local.rule import sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.weights import count_bytes, read_model

CLIENTS = 20
WORKERS = 2
WIDTHS = (1_200, 580)  # 784-1200-580-10: 6.6 MB
LARGEST_RATIO = 1.5


class Idle(Trainer):
    """Returns the start model."""

    def train(self, task: ClientTask) -> ClientUpdate:
        return ClientUpdate({name: tensor.clone() for name, tensor in task.start.items()}, 1.0)


def make_trainer(kind: type[Trainer], module: nn.Module, shape: tuple[int, ...]) -> Trainer:
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (2_000, *shape), dtype=np.uint8)
    labels = rng.integers(0, 10, 2_000)
    data = Dataset("synthetic", inputs, labels, inputs[:10], labels[:10], 10, scale=1 / 255)
    population = make_population(data, rng.integers(0, 2_000, (CLIENTS, 300), dtype=np.int32))
    return kind(module, population, LocalRule(sgd, 0.01, steps=5, batch_size=30), seed=0)


def event_of(start: Model, number: int) -> Cohort:
    return Cohort(number, number, 0, 0, np.arange(CLIENTS), np.ones(CLIENTS), float(CLIENTS), start)


def time_events(trainer: Trainer, turns: int) -> dict[str, list[float]]:
    """Return the seconds of an event of each executor, turn by turn; their models must be bit-identical."""
    start = read_model(trainer.module)
    makes: dict[str, Callable[[], Executor]] = {
        "cores": lambda: Cores(trainer, WORKERS, count_bytes(start)),
        "ray": lambda: Ray(trainer, WORKERS),
    }
    executors = {name: make() for name, make in makes.items()}
    seconds: dict[str, list[float]] = {name: [] for name in executors}
    try:
        for turn in range(turns + 1):
            models = []
            for name, executor in executors.items():
                began = time.perf_counter()
                (average,) = executor.train([event_of(start, turn)], average_models)
                seconds[name].append(time.perf_counter() - began)
                models.append(average.model)
            assert all(torch.equal(models[0][name], tensor) for name, tensor in models[1].items())
    finally:
        for executor in executors.values():
            executor.close()
    return {name: each[1:] for name, each in seconds.items()}  # the first event starts the workers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for ray-overhead.json")
    parser.add_argument("--turns", type=int, default=9, help="events of each executor")
    given = parser.parse_args()
    torch.manual_seed(0)
    cases = {
        "idle": make_trainer(Idle, dense((1, 28, 28), WIDTHS, 10), (1, 28, 28)),
        "alexnet": make_trainer(Trainer, MODELS["alexnet"]((3, 32, 32), 10), (3, 32, 32)),
    }
    print(f"{'case':10}{'MB':>6}{'cores, ms':>12}{'ray, ms':>12}{'ratio':>8}")
    rows, ratios = {}, {}
    for name, trainer in cases.items():
        seconds = time_events(trainer, given.turns)
        ratios[name] = ratio = statistics.median(r / c for r, c in zip(seconds["ray"], seconds["cores"], strict=True))
        megabytes = count_bytes(read_model(trainer.module)) / 1e6
        cores, ray = (1e3 * statistics.median(seconds[each]) for each in ("cores", "ray"))
        rows[name] = {"megabytes": megabytes, "cores_ms": cores, "ray_ms": ray, "ratio": ratio, "seconds": seconds}
        print(f"{name:10}{megabytes:6.1f}{cores:12.1f}{ray:12.1f}{ratio:8.2f}", flush=True)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "ray-overhead.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if ratios["alexnet"] > LARGEST_RATIO:
        sys.exit(f"ray takes {ratios['alexnet']:.2f} times as long as cores, must be at most {LARGEST_RATIO}")


if __name__ == "__main__":
    main()
