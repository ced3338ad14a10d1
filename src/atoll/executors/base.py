"""What an executor is."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from atoll.combine import Combine
from atoll.local import Outcome, Task
from atoll.models import Model

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Cohort:
    """Clients of one cluster that train once, all from one model.

    Attributes:
        event: number of the event.
        round: its round.
        repeat: number of the intra-cluster round within the event.
        cluster: their cluster.
        clients: the clients, int64.
        weights: each client's weight, [clients].
        event_weight: the sum of weights over all clients of the event, whatever cluster.
        start: the model that they are sent.
    """

    event: int
    round: int
    repeat: int
    cluster: int
    clients: Ids
    weights: Floats
    event_weight: float
    start: Model

    @property
    def tasks(self) -> list[Task]:
        """One task a client, in order."""
        return [
            Task(self.event, self.round, self.repeat, self.cluster, int(client), self.start) for client in self.clients
        ]


@dataclass(frozen=True, eq=False)
class Average:
    """What a cohort comes to: the combined model, and the mean local training loss, weighted as the clients are."""

    model: Model
    loss: float


class Trains(Protocol):
    """Does one client's work in this process; what an executor hands tasks to."""

    def train(self, task: Task) -> Outcome:
        """Return what the client sends back."""
        ...

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        ...

    def identity_rows(self, clients: Ids, round_: int) -> list[Rows]:
        """Return the positions in the pool of the samples that each client's losses are measured on."""
        ...

    def sample_losses(self, models: Sequence[Model], rows: Rows) -> Floats:
        """Return the loss of each model on each of these samples, [samples, models], in one batch."""
        ...


class Executor(Protocol):
    """Trains cohorts, which do not depend on each other, anywhere and in any order."""

    def train(self, cohorts: Sequence[Cohort], combine: Combine) -> list[Average]:
        """Return what each cohort comes to, in their order."""
        ...

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        ...

    def close(self) -> None:
        """Let go of what it holds, such as worker processes."""
        ...


def combine_outcomes(cohorts: Sequence[Cohort], combine: Combine, outcomes: Iterable[Outcome]) -> list[Average]:
    """Combine the outcomes of all cohorts' tasks, in their order, holding one client's model at a time."""
    coming = iter(outcomes)
    return [_combine(cohort, combine, coming) for cohort in cohorts]


def _combine(cohort: Cohort, combine: Combine, outcomes: Iterator[Outcome]) -> Average:
    losses: list[float] = []

    def pairs() -> Iterator[tuple[float, Model]]:
        for weight in cohort.weights.tolist():
            outcome = next(outcomes)
            losses.append(outcome.loss)
            yield weight, outcome.model

    model = combine(pairs(), cohort.start, cohort.event_weight)
    return Average(model, float(np.average(losses, weights=cohort.weights)))
