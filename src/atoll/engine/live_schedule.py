"""Live runs: clients answer when they can, or not at all, so events are known only as they take place.

Synchronous and cycling schedules follow the plan. Asynchronous ones follow arrival: all clusters work at the same time,
and whichever finishes next makes the next event. A simulation of the recorded events gives the same models.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from atoll.engine.cohorts import Executor
from atoll.engine.engine import merge
from atoll.engine.flights import Flights
from atoll.engine.method import Method
from atoll.engine.run_state import State, Step
from atoll.engine.train_events import EventResult, train_events
from atoll.schedules.events import Event
from atoll.schedules.timeline import Arrivals, Work
from atoll.support.errors import RunError

DROPPED = ("gone", "failed")
"""The reason that executors count if a client received the model but never answered."""
SPARED = "aside"
"""The reason that executors count if a client was sent nothing, since it had not answered for too long."""


@dataclass
class LiveRun:
    """The inputs of a live run.

    Attributes:
        method: holds the plan, of which only future events matter. Between events it may be replaced by one with a plan
            of the same length; work under way ends as it began.
        clock: returns the seconds since the run began.
        is_anyone_there: returns whether any client could answer now. While none can, no event takes place.
        wait_seconds: how long the run waits while no client answers.
        pause_seconds: between two checks, or between two attempts of a cluster from which no client answers.
    """

    method: Method
    clock: Callable[[], float]
    is_anyone_there: Callable[[], bool] = field(default=lambda: True)
    wait_seconds: float = 600.0
    pause_seconds: float = 1.0


def follow(live: LiveRun, executor: Executor, state: State, past: Sequence[Event] = ()) -> Generator[Step]:
    """Yield after every event, as it took place, from ``state.events_done`` to the plan's number of events.

    Times are those of the run's clock, staleness is the actual one, `answered` says whose results were merged, and
    `late` and `dropped` count replies that arrived too late or never, one per intra-cluster round.

    Args:
        live: the method, the clock and the waiting times.
        executor: trains cohorts of which some clients may not answer; called from several threads at once if events
            follow arrival.
        past: the events so far, as they took place.
    """
    if live.method.arrivals is None:
        yield from _follow_plan(live, executor, state)
    else:
        yield from _follow_arrivals(live, executor, state, past)


def _follow_plan(live: LiveRun, executor: Executor, state: State) -> Iterator[Step]:
    """Train the next planned events with whoever answers; an event without answers changes no cluster."""
    last, refused = live.clock(), Counter[str]()
    while events := live.method.schedule.ready(state.events_done, live.method.keeps_state):
        method, began = live.method, live.clock()
        done = train_events(method, executor, state, events)
        seconds = live.clock()
        if all(map(_is_fruitless, done)):
            if not live.is_anyone_there():
                refused = sum((trained.refused for trained in done), refused)
                _wait(live, last)
                continue
        else:
            last = seconds
        for trained in done:
            times = (began,) * len(trained.event.active)
            event = _count(replace(trained.event, seconds=seconds, began=times), trained.refused)
            step = merge(method, state, replace(trained, event=event, refused=trained.refused + refused))
            state, refused = step.state, Counter()
            yield step


def _follow_arrivals(live: LiveRun, executor: Executor, state: State, past: Sequence[Event]) -> Iterator[Step]:
    """Let all clusters work at once, and merge whichever finishes first; a cluster without answers tries again."""
    clusters = live.method.schedule.clusters
    downloaded = np.full(clusters, -1)
    for event in past[: state.events_done]:
        downloaded[[cluster for cluster, _ in event.starts]] = event.index
    failing, last, refused = set[int](), live.clock(), Counter[str]()
    flights = Flights(executor, live.clock)
    try:
        while state.events_done < len(live.method.schedule):
            arrivals, index = _arrivals_of(live.method), state.events_done
            for cluster, work in arrivals.beginning(index, set(range(clusters)) - flights.going):
                begun = _begin(live.method, cluster, work, int(downloaded[cluster]))
                flights.begin(live.method, work, begun, state, live.pause_seconds if cluster in failing else 0.0)
            landed = flights.next()
            if _is_fruitless(landed.trained):
                failing.update(landed.work.active)
                refused.update(landed.trained.refused)
                if failing >= flights.going:
                    _require_patience(live, last)
                continue
            failing, last = set(), max(last, landed.seconds)  # another that landed later may have told of it first
            done = arrivals.end(index, landed.work.active[0], landed.work, landed.began, last)
            event = _as_happened(arrivals.event(index, done, downloaded), landed.trained)
            in_vain = refused.total() - refused["gone"] - refused[SPARED]  # models that nobody sent back
            event = replace(event, models_down=event.models_down + in_vain)
            trained = replace(landed.trained, event=event, refused=landed.trained.refused + refused)
            step = merge(live.method, state, trained)
            state, refused = step.state, Counter()
            yield step
    finally:
        flights.drop()


def _arrivals_of(method: Method) -> Arrivals:
    arrivals = method.arrivals
    assert arrivals is not None, "a plan by arrival cannot be replaced by one without"
    return arrivals


def _begin(method: Method, cluster: int, work: Work, downloaded: int) -> Event:
    """Return a cluster's work as an event whose place in the run is not known yet.

    It is numbered as if clusters took turns: at first by the cluster, then one whole turn after the event that gave the
    cluster its start model. So the number is unique to each start, and the same after a resume.
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
    """Return the event of a cluster's completed work, with who answered."""
    asked = trained.event
    drawn_as = asked.index, asked.round
    event = replace(
        event,
        cohort=asked.cohort,
        clusters=asked.clusters,
        weights=asked.weights,
        models_up=event.models_up + asked.models_up,  # asked counts down from 0 what was not sent
        dropped=event.dropped + asked.dropped,
        answered=asked.answered,
        drawn_as=None if drawn_as == (event.index, event.round) else drawn_as,
    )
    return _count(event, trained.refused)


def _count(event: Event, refused: Counter[str]) -> Event:
    """Return the event with counts of late and missing replies, and of clients that were not asked."""
    dropped, spared = sum(refused[reason] for reason in DROPPED), refused[SPARED]
    return replace(
        event,
        late=event.late + refused["late"],
        dropped=event.dropped + dropped,
        absent=event.absent + spared,
        models_down=max(0, event.models_down - spared),  # clients that train alone exchange no models
        models_up=max(0, event.models_up),
    )


def _is_fruitless(trained: EventResult) -> bool:
    """Return whether clients were asked, but none answered."""
    answered = trained.event.answered
    return not answered.any() if answered is not None else bool(trained.event.dropped and not len(trained.clusters))


def _wait(live: LiveRun, last: float) -> None:
    """Wait until some client could answer."""
    while not live.is_anyone_there():
        _require_patience(live, last)
        time.sleep(live.pause_seconds)


def _require_patience(live: LiveRun, last: float) -> None:
    """Give up if no client has answered for too long."""
    if (waited := live.clock() - last) >= live.wait_seconds:
        raise RunError(
            f"no client has answered for {waited:.0f} s, longer than fleet.wait_seconds = {live.wait_seconds:g}; "
            "earlier results are kept"
        )
