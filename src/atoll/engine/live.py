"""Live runs: on clients that answer when they can, or not at all, so that what happens is found out while it happens.

Synchronous and cycling schedules follow the plan. Asynchronous ones follow arrival: all clusters work at the same time,
and whichever is done next makes the next event. The events that come out are those that took place; a schedule of them,
run in simulation, gives the same models.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread

import numpy as np

from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClusterUpdate, Cohort, Executor
from atoll.engine.engine import Method, State, Step, merge, train_together
from atoll.engine.events import EventResult
from atoll.local.models import Model
from atoll.schedules.events import Event
from atoll.schedules.timeline import Arrivals, Work
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import RunError

DROPPED = ("gone", "failed")
"""Why a client that took the model never answered, among the reasons that executors count."""


@dataclass
class LiveRun:
    """What a live run goes by.

    Attributes:
        method: with the plan, of which only events to come matter. It may be set between events to one with another
            plan of as many events; works under way end as they began.
        clock: returns the seconds since the run's begin.
        is_anyone_there: returns whether any client could answer now. As long as none can, no event takes place.
        wait_seconds: how long the run goes on waiting while nobody answers at all.
        pause_seconds: between two looks, or two attempts of a cluster that nobody answers from.
    """

    method: Method
    clock: Callable[[], float]
    is_anyone_there: Callable[[], bool] = field(default=lambda: True)
    wait_seconds: float = 600.0
    pause_seconds: float = 1.0


def follow(course: LiveRun, executor: Executor, state: State, past: Sequence[Event] = ()) -> Generator[Step]:
    """Yield after every event, as it took place, from ``state.events_done`` to the plan's number of events.

    Its times are those of the course's clock, its staleness is what really was, `answered` says whose results it has,
    and `late` and `dropped` count replies that did not come in time, or never, one an intra-cluster round.

    Args:
        course: what the run goes by.
        executor: trains cohorts of which some clients may not answer; is called from several threads at a time where
            the method goes by arrival.
        state: where to begin.
        past: the events so far, as they took place.

    Raises:
        RunError: nobody has answered for `wait_seconds`; or training fails.
    """
    if course.method.arrivals is None:
        yield from _follow_plan(course, executor, state)
    else:
        yield from _follow_arrivals(course, executor, state, past)


def _follow_plan(course: LiveRun, executor: Executor, state: State) -> Iterator[Step]:
    """Do what is planned next, with whoever answers; an event of which nobody does leaves its clusters as they were."""
    last, refused = course.clock(), Counter[str]()
    while events := course.method.schedule.ready(state.events_done, course.method.keeps_state):
        method, began = course.method, course.clock()
        done = train_together(method, executor, state, events)
        seconds = course.clock()
        if all(map(_is_fruitless, done)):
            if not course.is_anyone_there():
                refused = sum((trained.refused for trained in done), refused)
                _wait(course, last)
                continue
        else:
            last = seconds
        for trained in done:
            times = (began,) * len(trained.event.active)
            event = _count(replace(trained.event, seconds=seconds, began=times), trained.refused)
            step = merge(method, state, replace(trained, event=event, refused=trained.refused + refused))
            state, refused = step.state, Counter()
            yield step


def _follow_arrivals(course: LiveRun, executor: Executor, state: State, past: Sequence[Event]) -> Iterator[Step]:
    """Let every cluster work, and whichever is done merge and go on; one that nobody answered from tries again."""
    clusters = course.method.schedule.clusters
    downloaded = np.full(clusters, -1)
    for event in past[: state.events_done]:
        downloaded[[cluster for cluster, _ in event.starts]] = event.index
    failing, last, refused = set[int](), course.clock(), Counter[str]()
    flights = _Flights(course, executor)
    try:
        while state.events_done < len(course.method.schedule):
            arrivals, index = _arrivals_of(course.method), state.events_done
            for cluster, work in arrivals.beginning(index, set(range(clusters)) - flights.going):
                begun = _begin(course.method, cluster, work, int(downloaded[cluster]))
                flights.begin(work, begun, state, course.pause_seconds if cluster in failing else 0.0)
            landed = flights.next()
            if _is_fruitless(landed.trained):
                failing.update(landed.work.active)
                refused.update(landed.trained.refused)
                if failing >= flights.going:
                    _require_patience(course, last)
                continue
            failing, last = set(), landed.seconds
            (cluster,) = landed.work.active
            done = arrivals.end(index, cluster, landed.work, landed.began, landed.seconds)
            event = _as_happened(arrivals.event(index, done, downloaded), landed.trained)
            step = merge(
                course.method, state, replace(landed.trained, event=event, refused=landed.trained.refused + refused)
            )
            state, refused = step.state, Counter()
            yield step
    finally:
        flights.drop()


def _arrivals_of(method: Method) -> Arrivals:
    arrivals = method.arrivals
    assert arrivals is not None, "a plan by arrival cannot be replaced by one without"
    return arrivals


def _begin(method: Method, cluster: int, work: Work, downloaded: int) -> Event:
    """Return a cluster's work as an event of which it is not known yet which one it will be.

    Its number is the one that it has if clusters take turns: their own at first, then the one a whole turn after the
    event that gave the cluster its start. So it differs for each start, and is the same again when a run that was
    interrupted goes on.
    """
    schedule, arrivals = method.schedule, _arrivals_of(method)
    number = cluster if downloaded < 0 else schedule.clusters + downloaded
    return Event(
        index=number,
        round=min(number, len(schedule) - 1) * arrivals.rounds_per_event,
        seconds=0.0,
        active=work.active,
        began=(),
        cohort=work.cohort,
        clusters=work.clusters,
        weights=work.weights,
        intra_rounds=arrivals.intra_rounds,
    )


def _as_happened(event: Event, trained: EventResult) -> Event:
    """Return the event that a work has become, with what was found out in it."""
    found = trained.event
    began = found.index, found.round
    event = replace(
        event,
        cohort=found.cohort,
        clusters=found.clusters,
        weights=found.weights,
        models_up=event.models_up + found.models_up,  # which counts from 0 what was not sent
        dropped=event.dropped + found.dropped,
        answered=found.answered,
        drawn_as=None if began == (event.index, event.round) else began,
    )
    return _count(event, trained.refused)


def _count(event: Event, refused: Counter[str]) -> Event:
    """Return the event with the replies that did not come in time, or never."""
    dropped = sum(refused[reason] for reason in DROPPED)
    return replace(event, late=event.late + refused["late"], dropped=event.dropped + dropped)


def _is_fruitless(trained: EventResult) -> bool:
    """Return whether clients were asked, and nobody answered."""
    answered = trained.event.answered
    return not answered.any() if answered is not None else bool(trained.event.dropped and not len(trained.clusters))


def _wait(course: LiveRun, last: float) -> None:
    """Wait until there is somebody who could answer.

    Raises:
        RunError: nobody has answered for too long.
    """
    while not course.is_anyone_there():
        _require_patience(course, last)
        time.sleep(course.pause_seconds)


def _require_patience(course: LiveRun, last: float) -> None:
    """Give up if nobody has answered for too long.

    Raises:
        RunError: says for how long.
    """
    if (waited := course.clock() - last) >= course.wait_seconds:
        raise RunError(
            f"no client has answered for {waited:.0f} s, longer than fleet.wait_seconds = {course.wait_seconds:g}; "
            "what was done before is kept"
        )


@dataclass(frozen=True, eq=False)
class _Landed:
    """A work that is over, from when to when it took, and what it came to."""

    work: Work
    began: float
    seconds: float
    trained: EventResult


class _Dropped(Exception):
    """The run is over, so nobody needs the work."""


class _Flights:
    """Works under way, each in a thread.

    Attributes:
        going: the clusters whose works these are.
    """

    def __init__(self, course: LiveRun, executor: Executor) -> None:
        self.going: set[int] = set()
        self._course = course
        self._executor = executor
        self._over = Flag()
        self._landed: SimpleQueue[_Landed | BaseException] = SimpleQueue()

    def begin(self, work: Work, event: Event, state: State, delay: float) -> None:
        """Begin a work, after so many seconds."""
        self.going.update(work.active)
        # Not waited for when the process ends: a client may keep it waiting until its deadline.
        Thread(target=self._carry_out, args=(work, event, state, delay), daemon=True).start()

    def next(self) -> _Landed:
        """Return the next work to be over.

        Raises:
            AtollError: it failed.
        """
        landed = self._landed.get()
        if isinstance(landed, BaseException):
            raise landed
        self.going.difference_update(landed.work.active)
        return landed

    def drop(self) -> None:
        """Let what is under way end with the intra-cluster round that it is in."""
        self._over.set()

    @property
    def bits(self) -> str:
        """The name of the executor whose bits these are."""
        return self._executor.bits

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Train, unless the run is over."""
        if self._over.is_set():
            raise _Dropped
        return self._executor.train(cohorts, combine, screening)

    def carries_through(self, combine: Combine) -> bool:
        """Return False: a work that nobody needs any more ends after the intra-cluster round that it is in."""
        return False

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        return self._executor.losses(models, clients, round_)

    def close(self) -> None:
        """Leave the executor as it is."""

    def _carry_out(self, work: Work, event: Event, state: State, delay: float) -> None:
        self._over.wait(delay)
        method, began = self._course.method, self._course.clock()
        try:
            (trained,) = train_together(method, self, state, [event])
            self._landed.put(_Landed(work, began, self._course.clock(), trained))
        except BaseException as error:  # raised again where it can be seen
            self._landed.put(error)
