"""The executors' inputs and outputs, and the protocols of executors and trainers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from atoll.aggregation.mean import Combine, Weighted
from atoll.aggregation.screening import Screening
from atoll.aggregation.usual_norms import Norms
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.support.arrays import Floats, Ids, Mask

if TYPE_CHECKING:
    from atoll.local.precision import Precision

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Cohort:
    """Clients of one cluster that train from one model, for one or several intra-cluster rounds.

    Attributes:
        repeat: number of the intra-cluster round within the event.
        weights: each client's weight, [clients].
        event_weight: the sum of weights over all clients of the event, in any cluster.
        start: the model that they are sent.
        drawn_as: replaces the event in the key of random numbers; None: it is kept.
        repeats: intra-cluster rounds to train, from `repeat` on, each from the average of the one before. Above 1 only
            for an executor that `carries_through`.
        states: client states, of clients that have one.
        usual: norms of updates that had been accepted when the cluster got this start (`State.usual`).
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
    usual: Norms = ()

    @property
    def draws(self) -> int:
        """The event in the key of random numbers."""
        return self.event if self.drawn_as is None else self.drawn_as

    @property
    def tasks(self) -> list[ClientTask]:
        """One task per client, in order, for the first of the intra-cluster rounds."""
        common = self.event, self.round, self.repeat, self.cluster
        states = self.states
        return [ClientTask(*common, k, self.start, self.drawn_as, states.get(k)) for k in self.clients.tolist()]

    def states_of(self, clients: Ids) -> Mapping[int, Model]:
        """Return the states of some of its clients."""
        return {k: self.states[k] for k in clients.tolist() if k in self.states} if self.states else {}


@dataclass(frozen=True, eq=False)
class ClusterUpdate:
    """A cluster's update: the result of training its cohort.

    Attributes:
        model: the combined model; the start model if no result was valid.
        loss: weighted mean of the local training losses, or their median with a robust rule; NaN if no result was
            valid.
        arrived: share of the cohort's weight whose results were combined.
        refused: number of rejected results, by reason.
        answered: whose results were combined, [clients of the cohort], from an executor whose clients may fail to
            answer; None if they cannot.
        states: new client states, of clients whose results were combined, if their trainer `keeps_state`.
        norms: norms of the combined updates, in client order, if usual norms are learned.
    """

    model: Model
    loss: float
    arrived: float = 1.0
    refused: Mapping[str, int] = field(default_factory=dict)
    answered: Mask | None = None
    states: Mapping[int, Model] = field(default_factory=dict)
    norms: Norms = ()


class ClientTrainer(Protocol):
    """Does one client's work in this process, for an executor.

    Attributes:
        precision: the precision of products during training, which the executor sets.
    """

    precision: "Precision"

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep state from task to task."""

    @property
    def why_one_by_one(self) -> str:
        """Why clients must train one by one; empty if executors may train many at once, as `Trainer.train` would."""

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's update."""

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""

    def identity_rows(self, clients: Ids, round_: int) -> list[Rows]:
        """Return the pool positions of the samples that each client's losses are measured on."""

    def sample_losses(self, models: Sequence[Model], rows: Rows) -> Floats:
        """Return the loss of each model on each of these samples, [samples, models], in one batch."""

    def samples_a_step(self, clients: Ids) -> int:
        """Return the maximum number of samples in one step of all these clients, to which its time is proportional."""


class Executor(Protocol):
    """Trains independent cohorts, anywhere and in any order."""

    @property
    def bits(self) -> str:
        """The name of the executor to which results are bit-identical: with workers, the one that trains in each."""

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update, in the order of the cohorts."""

    def carries_through(self, combine: Combine) -> bool:
        """Return whether cohorts may have several `repeats` if this rule combines results without screening."""
        return False

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]; NaN if not reported."""

    def close(self) -> None:
        """Release its resources, such as worker processes."""
        return


def only_model(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Return the only client's model (a combine rule)."""
    ((_, model),) = models
    return model
