"""What a benchmark trains, and how a process that trains it is paced: all that contenders share.

Needs NumPy alone, so that other libraries' processes can load this file where Atoll is not installed.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

CLASSES = 10
DISTINCT = 10  # clients with samples of their own; the next ones hold the same again, so that memory stays small

SHAPES = {"mlp": (1, 28, 28), "lr": (1, 28, 28), "cnn": (1, 28, 28), "alexnet": (3, 32, 32)}


@dataclass(frozen=True)
class Case:
    """One round of a benchmark: in each cluster cohorts, one after the other, each from the mean of the one before.

    The round ends with the mean of the clusters' models.

    Attributes:
        model: name of the model.
        clients: clients a cohort.
        steps: local steps of a client, each SGD on one batch.
        batch_size: samples a step.
        cohorts: cohorts that train one after the other in a round.
        clusters: clusters that train at once, each its own cohorts.
        lr: learning rate; inputs are random, so it matters only that training stays finite.
    """

    model: str
    clients: int
    steps: int = 20
    batch_size: int = 30
    cohorts: int = 1
    clusters: int = 1
    lr: float = 0.01

    @property
    def name(self) -> str:
        """What tables and filters call it, such as ``mlp, 10 clients``."""
        several = f"{self.clusters} clusters of " if self.clusters > 1 else ""
        return f"{self.model}, {several}{self.clients} clients" + (f", {self.steps} step" if self.steps == 1 else "")

    @property
    def members(self) -> list[range]:
        """Each cluster's clients, who are in all its cohorts."""
        return [range(cluster * self.clients, (cluster + 1) * self.clients) for cluster in range(self.clusters)]

    @property
    def samples(self) -> int:
        """Samples that each client holds: one epoch is all its local steps."""
        return self.steps * self.batch_size

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, channels first."""
        return SHAPES[self.model]


def make_pool(case: Case) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return random images [samples, *shape], values 0 to 255, and labels [samples]: all clients' samples."""
    rng = np.random.default_rng(0)
    samples = min(case.clusters * case.clients, DISTINCT) * case.samples
    return rng.integers(256, size=(samples, *case.shape), dtype=np.uint8), rng.integers(CLASSES, size=samples)


def samples_of(case: Case, client: int) -> slice:
    """Return where a client's samples are in the pool."""
    low = client % DISTINCT * case.samples
    return slice(low, low + case.samples)


class WorkRate:
    """Lets a process train a round on request, and reports how long it took.

    The first round warms up: it starts at once and its end is told as ``{"ready": ...}``. Each further round waits
    for a line on standard input, and its seconds go to standard output, one JSON object a line.
    """

    def __init__(self, parameters: int, moved: Callable[[], float]) -> None:
        """Report these when ready, so that contenders can be checked to do the same work.

        Args:
            parameters: numbers in the model.
            moved: returns how far the model is from where it started, as the norm of all numbers' differences.
        """
        self._ready = {"parameters": parameters, "moved": moved}
        self._rounds = 0
        self._began = 0.0

    def next_round(self) -> bool:
        """End the round under way, if any, and wait until the next one is due; False when there is none."""
        seconds = time.perf_counter() - self._began
        self._rounds += 1
        if self._rounds == 1:
            return True
        if self._rounds == 2:
            _tell({"ready": {name: each() if callable(each) else each for name, each in self._ready.items()}})
        else:
            _tell({"seconds": seconds})
        due = bool(sys.stdin.readline())
        self._began = time.perf_counter()
        return due


def _tell(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
