"""The check of a schedule that a user's method made."""

import numpy as np

from atoll.schedules.events import Event, Schedule
from atoll.schedules.recorded import why_wrong
from atoll.support.errors import InputError


def require_sound(schedule: Schedule, clients: int, told: str) -> None:
    """Reject a schedule that cannot be carried out as it is told; `told` says whose it is."""
    if not len(schedule):
        raise InputError(f"{told}: its schedule has no events")
    last: Event | None = None
    for place, event in enumerate(schedule.events):
        if why := _why_unsound(event, place, last.round if last else 0, schedule, clients):
            raise InputError(f"{told}: event {place} of its schedule {why}")
        if fault := why_wrong(event, last, schedule.clusters):
            raise InputError(f"{told}: event {place} of its schedule is wrong ({fault})")
        last = event


def _why_unsound(event: Event, place: int, last: int, schedule: Schedule, clients: int) -> str:
    cohort, weights, clusters = event.cohort, event.weights, event.clusters
    if not all(isinstance(getattr(event, name), np.ndarray) for name in ("cohort", "weights")):
        return "has a cohort or weights that are no NumPy arrays; atoll.make_event makes them from lists"
    if event.index != place:
        return f"has the index {event.index}; events are numbered from 0, in order"
    if not last <= event.round < schedule.rounds:
        return f"is of round {event.round}; rounds must not go back, and be below Schedule.rounds = {schedule.rounds}"
    if outside := sorted(set(cohort.tolist()).difference(range(clients))):
        return f"trains client {outside[0]}, but clients are numbered from 0 to {clients - 1}"
    own = np.zeros(len(cohort), np.int64) if clusters is None else clusters
    if len(weights) != len(cohort) or len(own) != len(cohort):
        return f"has {len(cohort)} clients in its cohort, {len(weights)} weights, and clusters of {len(own)} clients"
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        return f"has the weights {weights[:5].tolist()}; they must be finite numbers above 0"
    if outside := sorted(set(own.tolist()).difference(range(schedule.clusters))):
        return f"trains cluster {outside[0]}, but clusters are numbered from 0 to {schedule.clusters - 1}"
    if not all(0 <= began <= event.seconds < np.inf for began in event.began):
        return f"begins at {list(event.began)} s and ends at {event.seconds:g} s; it must begin at 0 or later, then end"
    return ""
