"""Measure the engine's own cost: everything but training and evaluation.

Run:  python benchmarks/overhead.py [--out DIR] [--events 100000]

Two measures, in one thread:
- asynchronous and synchronous patterns with an executor that returns the start models, so that all processor time is
  the engine's, for schedules of 10,000 events of one cluster of 6 clients (or as many clusters' works);
- FedCluster's cycles on the MLP, 10 clients x 20 steps x batch 30, less what the trainer takes: the median cycle.
Prints also the memory of the schedules. The exit code is 1 if an asynchronous event costs 1 ms or more, or the
engine 2 % or more of FedCluster's cycles. With --out it writes overhead.json.
"""

import argparse
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atoll import Clustering, Dataset, LocalRule, Population, Trainer, fedcluster, init, make_population, train
from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.clustering.feduc.problem import PATTERNS, Pattern
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.engine.method import Method
from atoll.executors.serial import Serial
from atoll.local.models import Model, dense
from atoll.local.rule import sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.weights import read_model
from atoll.methods.papers.fedcluster import cycling
from atoll.methods.papers.hierarchical import SYNCHRONOUS, hierarchical
from atoll.network.network import Network
from atoll.network.topology import TOPOLOGIES, neighbours_of
from atoll.schedules.events import Schedule
from atoll.support.arrays import Floats, Ids
from atoll.support.process import keep_freed_memory

COHORT = 6
EVENTS = 10_000
CLUSTERS = (16, 1_000)
REPEATS = 5
LARGEST_SECONDS = 1e-3  # of an asynchronous event
LARGEST_SHARE = 0.02  # of FedCluster's cycles


class Idle:
    """An executor that returns every cohort's start model."""

    bits = "idle"

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        return [ClusterUpdate(cohort.start, 1.0) for cohort in cohorts]

    def carries_through(self, combine: Combine) -> bool:
        return False

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        return np.zeros((len(clients), len(models)))

    def close(self) -> None:
        pass


class Timed:
    """A trainer that adds up the seconds that training takes."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.precision = trainer.precision
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)

    def train(self, task: ClientTask) -> ClientUpdate:
        began = time.perf_counter()  # a processor's clock takes microseconds to ask, which would count as the engine's
        outcome = self.trainer.train(task)
        self.seconds += time.perf_counter() - began
        return outcome


def some_population(clients: int, samples: int, width: int) -> Population:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(1_000, width)).astype(np.float32)
    labels = rng.integers(0, 10, 1_000)
    data = Dataset("synthetic", inputs, labels, inputs[:10], labels[:10], 10)
    return make_population(data, rng.integers(0, 1_000, (clients, samples), dtype=np.int32))


def some_method(pattern: Pattern, clusters: int, events: int) -> Method:
    """Return a pattern on a grid of aggregators with `COHORT` clients each."""
    clients = clusters * COHORT
    rng = np.random.default_rng(0)
    rows = next(r for r in range(int(clusters**0.5), 0, -1) if clusters % r == 0)
    exchange = rng.uniform(0.05, 0.3, (clusters, clusters))
    np.fill_diagonal(exchange, 0)
    network = Network(
        rng.uniform(0.5, 2.0, clients),
        rng.uniform(0, 0.4, (clients, clusters)),
        rng.uniform(0.05, 0.3, clusters),
        exchange,
        neighbours_of(TOPOLOGIES["grid"](rows=rows, columns=clusters // rows)),
    )
    clustering = Clustering(np.arange(clients) % clusters, clusters)
    rule = LocalRule(sgd, 0.1, steps=1)
    return hierarchical(some_population(clients, 5, 4), clustering, network, rule, events, pattern, intra_rounds=1)


def measure_pattern(pattern: Pattern, clusters: int) -> dict[str, Any]:
    """Run a pattern without training; the model is small, so that mixing models costs little."""
    works = EVENTS if pattern not in SYNCHRONOUS else max(1, EVENTS // clusters)
    method = some_method(pattern, clusters, works)
    first = init(method, {f"layer{i}": torch.zeros(50) for i in range(4)})
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        for _step in train(method, Idle(), first):
            pass
        seconds.append((time.process_time() - began) / len(method.schedule))
    return {"pattern": pattern, "clusters": clusters, "event_seconds": statistics.median(seconds)}


def measure_cycles() -> float:
    """Return the share of FedCluster's cycles on the MLP that is not the trainer's; the median over cycles."""
    keep_freed_memory()  # as a run does
    population = some_population(100, 500, 784)
    rule = LocalRule(sgd, 0.005, steps=20, batch_size=30)
    method = fedcluster(population, Clustering(np.arange(100) % 10, 10), rule, REPEATS + 1, fraction=1.0)
    module = dense((784,), (200,), 10)
    trainer = Timed(Trainer(module, population, rule, seed=0))
    shares, began = [], time.perf_counter()
    for _step in train(method, Serial(trainer), init(method, read_model(module))):
        now = time.perf_counter()
        shares.append(1 - trainer.seconds / (now - began))
        trainer.seconds, began = 0.0, time.perf_counter()
    return statistics.median(shares[10:])  # not the first round


def measure_memory(events: int) -> dict[str, float]:
    """Return the megabytes of schedules with this many events of `COHORT` clients: asynchronous, and cycling."""
    population = some_population(600, 5, 4)
    made: dict[str, float] = {}

    def note(name: str, schedule: Schedule, before: int) -> None:
        gc.collect()
        made[name] = (tracemalloc.get_traced_memory()[0] - before) / 1e6
        assert len(schedule) == events

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    note("cenasy", some_method("cenasy", 16, events).schedule, before)
    before = tracemalloc.get_traced_memory()[0]
    note("cycling", cycling(population, Clustering(np.arange(600) % 10, 10), events // 10, 0.1), before)
    tracemalloc.stop()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for overhead.json")
    parser.add_argument("--events", type=int, default=100_000, help="events in the schedules whose memory is measured")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'pattern':10}{'clusters':>9}{'microseconds an event':>24}")
    rows = []
    for clusters in CLUSTERS:
        for pattern in PATTERNS:
            row = measure_pattern(pattern, clusters)
            rows.append(row)
            print(f"{pattern:10}{clusters:9}{1e6 * row['event_seconds']:24.0f}", flush=True)
    share, memory = measure_cycles(), measure_memory(given.events)
    print(f"FedCluster on the MLP: {100 * share:.2f} % of a cycle is the engine's")
    for name, megabytes in memory.items():
        print(f"a schedule of {given.events:,} events of {COHORT} clients ({name}): {megabytes:.0f} MB")
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        content = {"patterns": rows, "share": share, "megabytes": memory}
        (given.out / "overhead.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    slow = [r for r in rows if r["pattern"] not in SYNCHRONOUS and r["event_seconds"] >= LARGEST_SECONDS]
    if slow:
        sys.exit(f"an event of {slow[0]['pattern']} costs {1e3 * slow[0]['event_seconds']:.1f} ms, must be below 1 ms")
    if share >= LARGEST_SHARE:
        sys.exit(f"the engine takes {100 * share:.1f} % of FedCluster's cycles, must be below 2 %")


if __name__ == "__main__":
    main()
