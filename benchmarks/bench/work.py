"""What a benchmark trains, and how its processes are paced: everything that contenders share.

Needs only NumPy, so that other libraries' processes can load this file where Atoll is not installed.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

CLASSES = 10
DISTINCT = 10  # clients with different samples; further ones repeat these, which saves memory

SHAPES = {"mlp": (1, 28, 28), "lr": (1, 28, 28), "cnn": (1, 28, 28)}  # (3, 32, 32) for the others


@dataclass(frozen=True)
class Case:
    """One round of a benchmark: each cluster trains cohorts in turn, each starting from the previous one's mean.

    The round ends with the mean of the clusters' models.

    Attributes:
        model: name of the model.
        clients: clients per cohort.
        steps: local steps of a client, each SGD on one batch.
        batch_size: samples per step.
        cohorts: cohorts that train in turn in a round.
        clusters: clusters that train at once, each with its own cohorts.
        lr: learning rate; inputs are random, so it only has to keep training finite.
        epochs: passes over a client's samples that the steps make.
        shape: shape of one input, channels first; the model's own if empty.
        classes: number of classes.
        device: where to train, and `precision` that of products, for contenders that can choose.
    """

    model: str
    clients: int
    steps: int = 20
    batch_size: int = 30
    cohorts: int = 1
    clusters: int = 1
    lr: float = 0.01
    epochs: int = 1
    shape: tuple[int, ...] = ()
    classes: int = CLASSES
    device: str = "cpu"
    precision: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape) or SHAPES.get(self.model, (3, 32, 32)))  # JSON has lists

    @property
    def name(self) -> str:
        """The case's name in tables and filters, such as ``mlp, 10 clients``."""
        several = f"{self.clusters} clusters of " if self.clusters > 1 else ""
        return f"{self.model}, {several}{self.clients} clients" + (f", {self.steps} step" if self.steps == 1 else "")

    @property
    def told(self) -> dict[str, Any]:
        """The fields that are not the usual ones, for another process, whose code may be older than other fields."""
        usual = Case(self.model, self.clients)
        unusual = {name: value for name, value in asdict(self).items() if value != getattr(usual, name)}
        return {"model": self.model, "clients": self.clients, **unusual}

    @property
    def members(self) -> list[range]:
        """Each cluster's clients, which are in all its cohorts."""
        return [range(cluster * self.clients, (cluster + 1) * self.clients) for cluster in range(self.clusters)]

    @property
    def samples(self) -> int:
        """Samples per client."""
        return self.steps * self.batch_size // self.epochs


def make_pool(case: Case) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return random images [samples, *shape], values 0 to 255, and labels [samples]: all clients' samples."""
    rng = np.random.default_rng(0)
    samples = min(case.clusters * case.clients, DISTINCT) * case.samples
    return rng.integers(256, size=(samples, *case.shape), dtype=np.uint8), rng.integers(case.classes, size=samples)


def samples_of(case: Case, client: int) -> slice:
    """Return where a client's samples are in the pool."""
    low = client % DISTINCT * case.samples
    return slice(low, low + case.samples)


class WorkRate:
    """Lets a process train a round on request, and reports how long it took.

    The first round is a warm-up: it starts at once, and its end is reported as ``{"ready": ...}``. Each further round
    waits for a line on standard input; its seconds go to standard output, one JSON object per line.
    """

    def __init__(self, parameters: int, moved: Callable[[], float]) -> None:
        """Report the model's size and the norm of its change so far, to check that all contenders do the same work."""
        self._ready = {"parameters": parameters, "moved": moved}
        self._rounds = 0
        self._began = 0.0

    def next_round(self) -> bool:
        """End the current round, if any, and wait for the next request; False if there are no more."""
        seconds = time.perf_counter() - self._began
        self._rounds += 1
        if self._rounds == 1:
            return True
        if self._rounds == 2:
            ready = {name: each() if callable(each) else each for name, each in self._ready.items()}
            print(json.dumps({"ready": ready}), flush=True)
        else:
            print(json.dumps({"seconds": seconds}), flush=True)
        due = bool(sys.stdin.readline())
        self._began = time.perf_counter()
        return due
