"""Count the bytes that workers send to a run's process in an event, with one model a client and with sums of models.

Run:  python benchmarks/wire.py [--out DIR] [--clients N] [--ray]

Clients return the start model of the MLP, so nothing is measured but what is sent. For 2, 4 and 8 workers it prints
how many models or sums arrive, and their bytes with all that is sent beside them: of `cores` what it reads from shared
memory and pipes, with --ray of `ray` its pickled answers. Then comes arithmetic for an event of CenAsy: five times
100,000 clients, on 8 to 64 workers, at 10 Gbit/s. The sums are bit-identical for all numbers of workers, or the exit
code is 1; so it is if such an event takes a second or more on 32 workers. With --out it writes wire.json.
"""

import argparse
import json
import math
import pickle
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atoll import Dataset, LocalRule, Trainer, make_population
from atoll.aggregation.mean import Combine, average_models
from atoll.engine.cohorts import Cohort
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.distributed import cut_into_sums
from atoll.executors.ray.ray_executor import Ray
from atoll.local.models import MODELS, Model
from atoll.local.rule import sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.weights import count_bytes, read_model

WORKERS = 2, 4, 8
CLUSTER, INTRA_ROUNDS = 100_000, 5
GIGABITS = 10.0


@dataclass(frozen=True)
class Count:
    """What arrived in an event, by executor, rule and number of workers."""

    executor: str
    sums: bool
    workers: int
    clients: int
    arrivals: int
    bytes: int


class Idle(Trainer):
    """Returns the start model."""

    def train(self, task: ClientTask) -> ClientUpdate:
        return ClientUpdate(dict(task.start), 1.0)


def single(models: Any, start: Model, cohort_weight: float) -> Model:
    """Take the mean, without saying so, and so be given each client's model."""
    return average_models(models, start, cohort_weight)


def make_trainer(clients: int) -> Idle:
    images = np.zeros((100, 1, 28, 28), np.uint8)
    labels = np.arange(100) % 10
    data = Dataset("synthetic", images, labels, images[:1], labels[:1], 10, scale=1 / 255)
    rows = np.random.default_rng(0).integers(0, 100, (clients, 2), dtype=np.int32)
    torch.manual_seed(0)
    return Idle(MODELS["mlp"]((1, 28, 28), 10), make_population(data, rows), LocalRule(sgd, 0.1, 2, 10), seed=0)


def cohort_of(clients: int, start: Model) -> Cohort:
    weights = np.random.default_rng(1).integers(10, 99, clients).astype(float)
    return Cohort(0, 0, 0, 0, np.arange(clients), weights, float(weights.sum()), start)


def count_event(executor: Cores | Ray, workers: int, combine: Combine, cohort: Cohort) -> tuple[Count, Model]:
    """Train an event; count what arrives, as the workers' answers pass."""
    inner: Any = vars(executor)["workers" if isinstance(executor, Cores) else "_workers"]
    plain, arrivals, total = inner.map, 0, 0

    def counted(*given: Any, **named: Any) -> Iterator[Any]:
        nonlocal arrivals, total
        for answer in plain(*given, **named):
            total += len(pickle.dumps(answer, protocol=5))
            if isinstance(executor, Cores):  # the model itself is in shared memory
                total += sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in answer[0])
            arrivals += 1 if isinstance(executor, Cores) else len(answer)
            yield answer

    inner.map = counted
    (update,) = executor.train([cohort], combine)
    inner.map = plain
    name = type(executor).__name__.lower()
    return Count(name, combine is average_models, workers, len(cohort.clients), arrivals, total), update.model


def count_all(kinds: list[str], clients: int) -> tuple[list[Count], bool]:
    """Count events by each executor; also return whether all models that were summed in workers are the same."""
    trainer = make_trainer(clients)
    start = read_model(trainer.module)
    cohort, counts, models = cohort_of(clients, start), [], []
    for kind in kinds:
        for workers in WORKERS:
            with (
                Cores(trainer, workers, count_bytes(start))
                if kind == "cores"
                else Ray(trainer, workers, patience=600.0) as executor
            ):
                for combine in (single, average_models):
                    count, model = count_event(executor, workers, combine, cohort)
                    counts.append(count)
                    models += [model] if count.sums else []
                    print(row_of(count), flush=True)
    return counts, all(torch.equal(models[0][name], model[name]) for model in models for name in model)


def row_of(count: Count) -> str:
    what = "sums" if count.sums else "models"
    return (
        f"{count.executor:8}{count.workers:8}{count.clients:10,}{count.arrivals:10,} {what:8}{count.bytes / 1e6:10.1f}"
    )


def seconds_of(sums: int, bytes_a_sum: float, clients: int) -> float:
    """Return the seconds of an event of CenAsy on the wire: sums, and 20 bytes a client for its loss and weight."""
    return INTRA_ROUNDS * (sums * bytes_a_sum + 20 * clients) * 8 / (GIGABITS * 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for wire.json")
    parser.add_argument("--clients", type=int, default=1_000, help="clients of the counted events")
    parser.add_argument("--ray", action="store_true", help="count ray's answers too")
    given = parser.parse_args()
    print(f"{'executor':8}{'workers':>8}{'clients':>10}{'arrivals':>10}{'':9}{'MB':>10}")
    counts, same = count_all(["cores", "ray"] if given.ray else ["cores"], given.clients)
    trainer = make_trainer(CLUSTER)
    start = read_model(trainer.module)
    cohort, size = cohort_of(CLUSTER, start), count_bytes(start)
    arithmetic: dict[int, float] = {}
    for workers in (8, 16, 32, 64):
        sums = len(list(cut_into_sums([cohort], trainer, workers, Ray.finest)))
        arithmetic[workers] = seconds_of(sums, size + 1_000, CLUSTER)
        print(f"cenasy, {workers} workers: {INTRA_ROUNDS} x {sums:,} sums, {arithmetic[workers]:.2f} s", flush=True)
    print(f"cenasy, a model a client: {seconds_of(CLUSTER, size, 0):.0f} s")
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        written = {"counts": [asdict(count) for count in counts], "cenasy_seconds": arithmetic}
        (given.out / "wire.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
    if not same or arithmetic[32] >= 1:
        sys.exit(f"models equal: {same}; an event of CenAsy on 32 workers: {arithmetic[32]:.2f} s, must be below 1")


if __name__ == "__main__":
    main()
