"""Work under way in a live run: each cluster's in its own thread, until it lands or the run is over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread

from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClusterUpdate, Cohort, Executor
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.engine.train_events import EventResult, train_events
from atoll.local.models import Model
from atoll.schedules.events import Event
from atoll.schedules.timeline import Work
from atoll.support.arrays import Floats, Ids


@dataclass(frozen=True, eq=False)
class Landed:
    """Completed work: when it began and ended, and its result."""

    work: Work
    began: float
    seconds: float
    trained: EventResult


class _Dropped(Exception):
    """The run is over, so the work is no longer needed."""


class Flights(Executor):
    """Work under way, each cluster's in its own thread.

    Attributes:
        going: the clusters at work.
    """

    def __init__(self, executor: Executor, clock: Callable[[], float]) -> None:
        """Train with this executor, called from several threads at once, and time it by this clock."""
        self.going: set[int] = set()
        self._executor = executor
        self._clock = clock
        self._over = Flag()
        self._landed: SimpleQueue[Landed | BaseException] = SimpleQueue()

    def begin(self, method: Method, work: Work, event: Event, state: State, delay: float) -> None:
        """Begin a cluster's work after a delay in seconds."""
        self.going.update(work.active)
        # A daemon, so that the process can end without waiting for a client's deadline.
        Thread(target=self._train, args=(method, work, event, state, delay), daemon=True).start()

    def next(self) -> Landed:
        """Return the next work to be completed."""
        landed = self._landed.get()
        if isinstance(landed, BaseException):
            raise landed
        self.going.difference_update(landed.work.active)
        return landed

    def drop(self) -> None:
        """Let work under way end after its current intra-cluster round."""
        self._over.set()

    @property
    def bits(self) -> str:
        """The name of the executor to which results are bit-identical."""
        return self._executor.bits

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Train, unless the run is over."""
        if self._over.is_set():
            raise _Dropped
        return self._executor.train(cohorts, combine, screening)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        return self._executor.losses(models, clients, round_)

    def _train(self, method: Method, work: Work, event: Event, state: State, delay: float) -> None:
        self._over.wait(delay)
        began = self._clock()
        try:
            (trained,) = train_events(method, self, state, [event])
            self._landed.put(Landed(work, began, self._clock(), trained))
        except BaseException as error:  # raised again by `next`
            self._landed.put(error)
