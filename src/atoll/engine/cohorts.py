"""What an executor is."""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import mul
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from atoll.aggregation.mean import Combine, Weighted
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import AtollError, RunError

if TYPE_CHECKING:
    from atoll.local.precision import Precision

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Cohort:
    """Clients of one cluster that train once, all from one model; or several times, as an executor may be asked to.

    Attributes:
        event: number of the event.
        round: its round.
        repeat: number of the intra-cluster round within the event.
        cluster: their cluster.
        clients: the clients, int64.
        weights: each client's weight, [clients].
        event_weight: the sum of weights over all clients of the event, whatever cluster.
        start: the model that they are sent.
        drawn_as: what their random numbers are keyed with; None: the number of the event.
        repeats: intra-cluster rounds to train, from `repeat` on, each from the average of the one before. Above 1 only
            for an executor that `carries_through`.
    """

    event: int
    round: int
    repeat: int
    cluster: int
    clients: Ids
    weights: Floats
    event_weight: float
    start: Model
    drawn_as: int | None = None
    repeats: int = 1

    @property
    def tasks(self) -> list[ClientTask]:
        """One task a client, in order, in the first of its intra-cluster rounds."""
        common = self.event, self.round, self.repeat, self.cluster
        return [ClientTask(*common, int(client), self.start, self.drawn_as) for client in self.clients]


@dataclass(frozen=True, eq=False)
class ClusterUpdate:
    """What a cohort comes to.

    Attributes:
        model: the combined model; the one that the clients were sent if no result was good.
        loss: mean local training loss, weighted as the clients are; not a number if no result was good.
        arrived: share of the cohort's weight whose results were combined.
        refused: how many results were left out, by reason.
        answered: whose results were combined, [clients of the cohort], from an executor whose clients may fail to
            answer; None from one whose clients never do.
    """

    model: Model
    loss: float
    arrived: float = 1.0
    refused: Mapping[str, int] = field(default_factory=dict)
    answered: npt.NDArray[np.bool_] | None = None


class ClientTrainer(Protocol):
    """Does one client's work in this process; what an executor hands tasks to.

    Attributes:
        precision: what the executor lets products be computed in while it trains.
    """

    precision: "Precision"

    def train(self, task: ClientTask) -> ClientUpdate:
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

    def train(self, cohorts: Sequence[Cohort], combine: Combine) -> list[ClusterUpdate]:
        """Return what each cohort comes to, in their order."""
        ...

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]; NaN where none was told."""
        ...

    def close(self) -> None:
        """Let go of what it holds, such as worker processes."""
        ...


def carries_through(executor: Executor | None, combine: Combine) -> bool:
    """Return whether an executor's cohorts may have several `repeats` where results are combined by this rule.

    Not unless it says so, by a method ``carries_through(combine)`` that it need not have.
    """
    told: Callable[[Combine], bool] | None = getattr(executor, "carries_through", None)
    return told is not None and told(combine)


def split_clients(cohort: Cohort) -> Iterator[Cohort]:
    """Yield a cohort of each client alone."""
    alone = replace(cohort, weights=np.ones(1), event_weight=1.0)
    for row in range(len(cohort.clients)):
        yield replace(alone, clients=cohort.clients[row : row + 1])


def only_model(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Return the only client's model (a combine rule)."""
    ((_, model),) = models
    return model


def combine_updates(
    cohorts: Sequence[Cohort], combine: Combine, outcomes: Iterable[ClientUpdate]
) -> list[ClusterUpdate]:
    """Combine the outcomes of all cohorts' tasks, in their order, holding one client's model at a time.

    A rule may hold more. What `Screened` refuses is left out and counted; without any result the start is kept.

    Raises:
        RunError: the combine rule fails; names event and cluster.
    """
    coming = iter(outcomes)
    return [_combine(cohort, combine, coming) for cohort in cohorts]


def _combine(cohort: Cohort, combine: Combine, outcomes: Iterator[ClientUpdate]) -> ClusterUpdate:
    from atoll.aggregation.screening import Screened  # needs PyTorch, which a schedule alone does not

    losses: list[float] = []
    weights: list[float] = []
    refused: Counter[str] = Counter()
    screened = combine if isinstance(combine, Screened) else None

    def good() -> Iterator[tuple[float, Model]]:
        for weight in cohort.weights.tolist():
            outcome = next(outcomes)
            if screened and (reason := screened.why_refused(outcome, cohort.start)):
                refused[reason] += 1
                continue
            losses.append(outcome.loss)
            weights.append(weight)
            yield weight, outcome.model

    try:
        pairs = good()
        first = next(pairs, None)
        if first is None:
            return ClusterUpdate(cohort.start, math.nan, 0.0, refused)
        model = combine(chain([first], pairs), cohort.start, cohort.event_weight)
        deque(pairs, maxlen=0)  # a rule need not ask for all, but the outcomes that follow are the next cohort's
    except AtollError:
        raise
    except Exception as error:  # whatever a user's combine rule may raise
        where = f"event {cohort.event}, cluster {cohort.cluster}"
        raise RunError(f"{where}: combining the clients' models failed ({type(error).__name__}: {error})") from error
    arrived = math.fsum(weights) / float(cohort.weights.sum()) if refused else 1.0
    return ClusterUpdate(model, weighted_mean(losses, weights), arrived, refused)


def weighted_mean(values: Iterable[float], weights: Collection[float]) -> float:
    """Return the weighted mean of some numbers: exactly rounded sums, whatever their order.

    >>> weighted_mean([0.0, 4.0], [1.0, 3.0])
    3.0
    """
    return math.fsum(map(mul, weights, values)) / math.fsum(weights)
