"""Clients that do not answer, as part of the schedule: absence, dropout and lateness are known before training.

A lost client is removed from its event's cohort, but the event's end time is unchanged. The server does not know who
will fail: it waits as long as the whole cohort would take, at most until the deadline (`Clock`).
"""

from dataclasses import replace

import numpy as np

from atoll.faults.availability import Availability
from atoll.schedules.clock import Clock, missed
from atoll.schedules.events import Event, Schedule
from atoll.schedules.packed import pack
from atoll.schedules.timeline import DAY_SECONDS
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import InputError
from atoll.support.limits import BelowOne
from atoll.support.requiring import require
from atoll.support.seeds import generator


def lose_clients(
    schedule: Schedule,
    seed: int = 0,
    dropout: float = 0.0,
    slots: Mask | None = None,
    clock: Clock | None = None,
    availability: Availability | None = None,
) -> Schedule:
    """Return the schedule without each event's lost clients; the events count them.

    A client is lost for the first reason that applies. Each client's draw has its own key (seed, event, client), so
    it does not depend on the rest of the cohort.

    - absent: the slot of the day in which its work begins is not one of its `slots`, bool [clients, slots], or it is
      down then by `availability`. It is sent nothing. The clock starts at midnight UTC.
    - dropped, with the probability `dropout`: it is sent the model, and nothing comes back.
    - late: it needs more seconds than the clock's deadline. It is sent the model; its result is not waited for.

    Raises:
        InputError: a probability outside [0, 1), a deadline that no client of any cohort keeps, or an availability
            that ends before an event begins.
    """
    dropout = require("faults.dropout", dropout, BelowOne)
    require("schedule", schedule, Schedule)
    if clock is not None:
        _require_kept(schedule, clock)

    def lose(event: Event) -> Event:
        cohort, began = event.cohort, _began(event)
        absent = np.zeros(len(cohort), bool) if slots is None else ~slots[cohort, _slot_of(began, slots.shape[1])]
        if availability is not None:
            absent |= ~availability.at(cohort, began)
        dropped = ~absent & (_draw(seed, event) < dropout if dropout else False)
        slow = False if clock is None else clock.seconds_of(cohort, began) > clock.deadline_seconds
        return _without(event, absent, dropped, late=~absent & ~dropped & slow)

    return replace(schedule, events=pack(map(lose, schedule.events)))


def _without(event: Event, absent: Mask, dropped: Mask, late: Mask) -> Event:
    """Remove clients from an event, with the cost of their uploads and, if absent, of their downloads."""
    lost = absent | dropped | late
    if not lost.any():
        return event
    kept = ~lost
    # models sent to each client, and by it
    sent, returned = (models // len(event.cohort) for models in (event.models_down, event.models_up))
    sent = sent if event.clusters is None else min(event.intra_rounds, sent)
    return replace(
        event,
        cohort=event.cohort[kept],
        clusters=None if event.clusters is None else event.clusters[kept],
        weights=event.weights[kept],
        models_down=event.models_down - sent * int(absent.sum()),
        models_up=event.models_up - min(event.intra_rounds, returned) * int(lost.sum()),
        absent=int(absent.sum()),
        dropped=int(dropped.sum()),
        late=event.late + int(late.sum()),
    )


def _draw(seed: int, event: Event) -> Floats:
    """Return a number in [0, 1) for each client of the cohort."""
    return np.array([generator(seed, "dropout", event.index, client).random() for client in event.cohort.tolist()])


def _slot_of(began: Floats, slots: int) -> Ids:
    """Return the slot of the day of each of these virtual times, of so many slots."""
    return np.minimum((began % DAY_SECONDS) * slots / DAY_SECONDS, slots - 1).astype(np.int64)


def _began(event: Event) -> Floats:
    """Return the virtual time at which each cohort client's work begins, [cohort]."""
    began = np.asarray(event.began, float)
    if event.clusters is None:
        return np.full(len(event.cohort), began[:1])  # none if nothing trains
    return np.asarray(began[np.searchsorted(event.active, event.clusters)])


def _require_kept(schedule: Schedule, clock: Clock) -> None:
    """Reject a deadline that leaves every event without clients."""
    events = [each for each in schedule.events if len(each.cohort)]
    least = min((float(clock.seconds_of(each.cohort, _began(each)).min()) for each in events), default=0.0)
    if least > clock.deadline_seconds:
        raise InputError(missed(clock.deadline_seconds, least))
