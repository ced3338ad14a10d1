"""The common part of executors with worker processes: what a worker trains at a time, and which bits that gives."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from atoll.aggregation.mean import Combine, Sum, average_models, is_weighted_mean, needs_only_mean
from atoll.aggregation.screening import Screening
from atoll.aggregation.sum_tree import LEAF, subtree_at
from atoll.engine.cohorts import ClientTrainer, ClusterUpdate, Cohort, Executor, Rows
from atoll.engine.combining import PartialSum, add_up, combine_updates
from atoll.executors.packing import Packed, pack, unpack
from atoll.executors.serial import Serial
from atoll.local.models import Model
from atoll.local.task import ClientUpdate
from atoll.support.arrays import Ids
from atoll.support.process import one_thread


@dataclass(frozen=True, eq=False)
class TrainingUnit:
    """What a worker trains at a time.

    Attributes:
        cohort: a cohort, or some of its clients.
        whole: whether it is a whole cohort, for `Distributed.by_cohort`.
        span: places of the subtree of the cohort's `SumTree` whose sum is returned; 0: each client's model is.
        screening: which results the sum leaves out; None: none.
    """

    cohort: Cohort
    whole: bool = False
    span: int = 0
    screening: Screening | None = None

    def __str__(self) -> str:
        """Name the event, the cluster and the clients, for errors."""
        numbers = self.cohort.clients.tolist()
        listed = ", ".join(map(str, numbers if len(numbers) <= LEAF else [*numbers[:3], "...", numbers[-1]]))
        clients = "" if self.whole else f", {'client' if len(numbers) == 1 else 'clients'} {listed}"
        return f"event {self.cohort.event}, cluster {self.cohort.cluster}{clients}: training"

    def packed(self) -> "tuple[TrainingUnit, dict[int, Packed]]":
        """Return it without models, and the clients' states as bytes; the start model is sent separately."""
        states = {client: pack(state) for client, state in self.cohort.states.items()}
        return replace(self, cohort=replace(self.cohort, start={}, states={})), states


@dataclass(frozen=True, eq=False)
class Training:
    """A request to train a unit, without its models, from these client states."""

    unit: TrainingUnit
    states: dict[int, Packed]

    def __str__(self) -> str:
        return str(self.unit)


@dataclass(frozen=True, eq=False)
class Measuring:
    """A request to evaluate models on samples."""

    rows: Rows

    def __str__(self) -> str:
        return "measuring the models on the clients' samples"


Trained = tuple[Model, float | PartialSum, dict[int, Packed]]  # a model with its loss, or a sum; client states


def train_unit(
    unit: TrainingUnit, start: Model, states: Mapping[int, Packed], serial: Serial, by_cohort: Executor | None
) -> list[Trained]:
    """Train a unit, in a worker: return what to send for its cohort, its subtree or each of its clients."""
    cohort = replace(unit.cohort, start=start, states={client: unpack(state) for client, state in states.items()})
    if unit.span:
        part = add_up(cohort, serial.updates(cohort), unit.screening, unit.span)
        return [(part.total.model, replace(part, total=Sum(part.total.weight)), {})]
    if unit.whole and by_cohort is not None:
        return [(average.model, average.loss, {}) for average in by_cohort.train([cohort], average_models)]
    updates = zip(cohort.clients.tolist(), serial.updates(cohort), strict=True)  # judged in the run's process
    return [(one.model, one.loss, {} if one.state is None else {client: pack(one.state)}) for client, one in updates]


def update_of(outcome: float | PartialSum, model: Model, states: Mapping[int, Packed]) -> ClientUpdate | PartialSum:
    """Return the update that a worker sent, in the run's process."""
    if isinstance(outcome, PartialSum):
        return replace(outcome, total=Sum(outcome.total.weight, model))
    return ClientUpdate(model, outcome, next(map(unpack, states.values()), None))


@contextmanager
def ending_on_error(close: Callable[[], None]) -> Iterator[None]:
    """Leave the cores to the workers, and end them by `close` after any error, including the user's interrupt."""
    with one_thread():
        try:
            yield
        except BaseException:
            close()
            raise


def why_single(combine: Combine, screening: Screening | None, keeps_state: bool, rule: str = "the combine rule") -> str:
    """Return why each client's model must be sent to the run's process; empty if workers may send sums of them."""
    if keeps_state:
        return "clients keep state"
    if screening is not None and not screening.judges_alone:
        return "results are compared with each other"
    return "" if needs_only_mean(combine) else f"{rule} needs more than their mean"


class Distributed(Executor):
    """Workers train single clients, subtrees of cohorts, or whole cohorts if there is a `by_cohort`."""

    trainer: ClientTrainer
    by_cohort: Executor | None
    finest: ClassVar[int]  # a unit need not be smaller than a worker's share of all work, divided by this

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bits(self) -> str:
        """The name of the executor to which results are bit-identical."""
        return "serial" if self.by_cohort is None else self.by_cohort.bits

    def carries_through(self, combine: Combine) -> bool:
        """Return whether workers take cohorts through several intra-cluster rounds, as `by_cohort` does."""
        return self.by_cohort is not None and self.by_cohort.carries_through(combine)

    def takes_whole(self, combine: Combine, screening: Screening | None) -> bool:
        """Return whether a worker trains a whole cohort, which it cannot if single results are needed."""
        return self.by_cohort is not None and screening is None and is_weighted_mean(combine)

    def units(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None, workers: int, together: int = 1
    ) -> Iterator[TrainingUnit]:
        """Yield what workers train at a time, in order; of clients whose models are sent, at most `together`."""
        if self.takes_whole(combine, screening):
            yield from (TrainingUnit(cohort, whole=True) for cohort in cohorts)
            return
        if why_single(combine, screening, self.trainer.keeps_state):
            yield from (TrainingUnit(part) for cohort in cohorts for part in cut(cohort, together))
            return
        sums = cut_into_sums(cohorts, self.trainer, workers, self.finest, together)
        yield from (replace(unit, screening=screening) for unit in sums)

    def merge(
        self,
        cohorts: Sequence[Cohort],
        combine: Combine,
        updates: Iterable[ClientUpdate | PartialSum],
        screening: Screening | None,
    ) -> list[ClusterUpdate]:
        """Return each cluster's update from the workers' results: whole cohorts, or their clients in order."""
        if self.takes_whole(combine, screening):
            return [ClusterUpdate(update.model, update.loss) for update in updates if isinstance(update, ClientUpdate)]
        return combine_updates(cohorts, combine, updates, screening)


def cut(cohort: Cohort, size: int) -> Iterator[Cohort]:
    """Yield parts of a cohort, of at most `size` clients each."""
    return (part_of(cohort, place, size) for place in range(0, len(cohort.clients), size))


def part_of(cohort: Cohort, place: int, size: int) -> Cohort:
    """Return the cohort's clients from a place on, at most `size` of them."""
    part = slice(place, place + size)
    clients = cohort.clients[part]
    return replace(cohort, clients=clients, weights=cohort.weights[part], states=cohort.states_of(clients))


def cut_into_sums(
    cohorts: Sequence[Cohort], trainer: ClientTrainer, workers: int, finest: int, together: int = 1
) -> Iterator[TrainingUnit]:
    """Yield subtrees of the cohorts, and between them clients whose models are sent, at most `together`, in order.

    Units shrink toward the end, so that workers of different speeds finish together: one has at most a quarter of a
    worker's share of what is left, or all of it if it is a leaf.
    """
    cost = trainer.samples_a_step
    every = left = sum(cost(cohort.clients) for cohort in cohorts)
    for cohort in cohorts:
        place = 0
        while place < len(cohort.clients):
            span = _span_at(place, cohort.clients, cost, left / workers, every / workers / finest)
            part = part_of(cohort, place, span or min(together, LEAF - place % LEAF))
            yield TrainingUnit(part, span=span)
            place += len(part.clients)
            left -= cost(part.clients)


def _span_at(place: int, clients: Ids, cost: Callable[[Ids], int], share: float, least: float) -> int:
    """Return the places of the subtree that a worker sums next; 0 if it should train single clients."""

    def fits(span: int) -> bool:
        return cost(clients[place : place + span]) <= max(share if span == LEAF else share / 4, least)

    return subtree_at(place, len(clients), fits)
