"""What executors train and return, and the protocols they meet."""

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import mul
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from atoll.aggregation.mean import Combine, Weighted, takes_median_of_losses
from atoll.aggregation.screening import Screening
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import AtollError, RunError, failure_of

if TYPE_CHECKING:
    from atoll.local.precision import Precision

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Cohort:
    """Clients of one cluster that train once, all from one model; or several times, where an executor is asked to.

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
        states: what clients keep from their last task, of those that have any.
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
    states: Mapping[int, Model] = field(default_factory=dict)

    @property
    def tasks(self) -> list[ClientTask]:
        """One task a client, in order, in the first of its intra-cluster rounds."""
        common = self.event, self.round, self.repeat, self.cluster
        states = self.states
        return [ClientTask(*common, k, self.start, self.drawn_as, states.get(k)) for k in self.clients.tolist()]

    def states_of(self, clients: Ids) -> Mapping[int, Model]:
        """Return what these of its clients keep."""
        return {k: self.states[k] for k in clients.tolist() if k in self.states} if self.states else {}


@dataclass(frozen=True, eq=False)
class ClusterUpdate:
    """A cluster's update: what its cohort's training gave.

    Attributes:
        model: the combined model; the one that the clients were sent if no result was good.
        loss: mean local training loss, weighted as the clients are, or with a robust rule their median; NaN if no
            result was good.
        arrived: share of the cohort's weight whose results were combined.
        refused: how many results were left out, by reason.
        answered: whose results were combined, [clients of the cohort], from an executor whose clients may fail to
            answer; None from one whose clients never do.
        states: what the clients whose results were combined now keep, where their trainer `keeps_state`.
    """

    model: Model
    loss: float
    arrived: float = 1.0
    refused: Mapping[str, int] = field(default_factory=dict)
    answered: Mask | None = None
    states: Mapping[int, Model] = field(default_factory=dict)


class ClientTrainer(Protocol):
    """Does one client's work in this process; what an executor hands tasks to.

    Attributes:
        precision: what the executor lets products be computed in while it trains.
        why_one_by_one: why its clients must train one by one, each by `train`; an empty text if executors may do what
            `Trainer.train` does for many at once.
        keeps_state: whether clients keep a state from task to task.
    """

    precision: "Precision"

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep a state from task to task."""
        ...

    @property
    def why_one_by_one(self) -> str:
        """Why clients must train one by one."""
        ...

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

    def samples_a_step(self, clients: Ids) -> int:
        """Return how many samples one step of all these clients takes, at most; what their time goes with."""
        ...


class Executor(Protocol):
    """Trains cohorts, which do not depend on each other, anywhere and in any order."""

    @property
    def bits(self) -> str:
        """The name of the executor whose bits these are: workers give those of what trains in each of them."""
        ...

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update, in the order of the cohorts."""
        ...

    def carries_through(self, combine: Combine) -> bool:
        """Return whether cohorts may have several `repeats` where results are combined by this rule, unscreened."""
        ...

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]; NaN if not reported."""
        ...

    def close(self) -> None:
        """Release what it holds, such as worker processes."""
        ...


def split_clients(cohort: Cohort) -> Iterator[Cohort]:
    """Yield a cohort of each client alone."""
    alone = replace(cohort, weights=np.ones(1), event_weight=1.0)
    for row in range(len(cohort.clients)):
        clients = cohort.clients[row : row + 1]
        yield replace(alone, clients=clients, states=cohort.states_of(clients))


def only_model(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Return the only client's model (a combine rule)."""
    ((_, model),) = models
    return model


def combine_updates(
    cohorts: Sequence[Cohort],
    combine: Combine,
    updates: Iterable[ClientUpdate],
    screening: Screening | None = None,
) -> list[ClusterUpdate]:
    """Combine the updates of all cohorts' tasks, in their order, holding one client's model at a time.

    A rule may hold more. What the screening refuses is left out and counted; without any result the start is kept.
    A client whose result is left out keeps the state that it had before.

    Raises:
        RunError: the combine rule fails; names event and cluster.
    """
    coming = iter(updates)
    return [_combine(cohort, combine, coming, screening) for cohort in cohorts]


def _combine(
    cohort: Cohort, combine: Combine, updates: Iterator[ClientUpdate], screening: Screening | None
) -> ClusterUpdate:
    losses: list[float] = []
    weights: list[float] = []
    refused: Counter[str] = Counter()
    states: dict[int, Model] = {}
    if screening:
        updates = screening.sent(cohort.clients, cohort.start, updates)

    def good() -> Iterator[tuple[float, Model]]:
        for client, weight in zip(cohort.clients.tolist(), cohort.weights.tolist(), strict=True):
            update = next(updates)
            if screening and (reason := screening.why_refused(update, cohort.start)):
                refused[reason] += 1
                continue
            losses.append(update.loss)
            weights.append(weight)
            if update.state is not None:
                states[client] = update.state
            yield weight, update.model
            del update

    try:
        pairs = good()
        first = next(pairs, None)
        if first is None:
            return ClusterUpdate(cohort.start, math.nan, 0.0, refused)
        model = combine(chain([first], pairs), cohort.start, cohort.event_weight)
        deque(pairs, maxlen=0)  # a rule need not ask for all, but the updates that follow are the next cohort's
    except AtollError:
        raise
    except Exception as error:  # whatever a user's combine rule may raise
        where = f"event {cohort.event}, cluster {cohort.cluster}"
        raise RunError(f"{where}: combining the clients' models failed ({failure_of(error)})") from error
    arrived = math.fsum(weights) / float(cohort.weights.sum()) if refused else 1.0
    average = weighted_median if takes_median_of_losses(combine) else weighted_mean
    return ClusterUpdate(model, average(losses, weights), arrived, refused, states=states)


def weighted_mean(values: Iterable[float], weights: Collection[float]) -> float:
    """Return the weighted mean of some numbers: exactly rounded sums, whatever their order.

    >>> weighted_mean([0.0, 4.0], [1.0, 3.0])
    3.0
    """
    return math.fsum(map(mul, weights, values)) / math.fsum(weights)


def weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the mean of the first values at which the cumulative weight reaches, and exceeds, half of the total.

    >>> weighted_median([5.0, 1e9, 1.0], [1.0, 1.0, 1.0]), weighted_median([0.0, 4.0], [1.0, 1.0])
    (5.0, 2.0)
    """
    pairs = sorted(zip(values, weights, strict=True))
    so_far = list(accumulate(weight for _, weight in pairs))
    half = so_far[-1] / 2
    reaching = next(value for (value, _), weight in zip(pairs, so_far, strict=True) if weight >= half)
    passing = next((value for (value, _), weight in zip(pairs, so_far, strict=True) if weight > half), reaching)
    return (reaching + passing) / 2
