"""The check of a schedule that a user's method made."""

import numpy as np

from atoll.schedules.events import Event, Schedule
from atoll.support.errors import InputError


def require_sound(schedule: Schedule, clients: int, told: str) -> None:
    """Reject a schedule that cannot be carried out as it is told; `told` says whose it is."""
    if not len(schedule):
        raise InputError(f"{told}: its schedule has no events")
    last = 0
    for place, event in enumerate(schedule.events):
        if why := _why_unsound(event, place, last, schedule, clients):
            raise InputError(f"{told}: event {place} of its schedule {why}")
        last = event.round


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
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        return f"has the weights {weights[:5].tolist()}; they must be finite numbers of at least 0"
    if outside := sorted(set(own.tolist()).difference(range(schedule.clusters))):
        return f"trains cluster {outside[0]}, but clusters are numbered from 0 to {schedule.clusters - 1}"
    if unweighted := [each for each in np.unique(own).tolist() if not weights[own == each].sum()]:
        return f"gives every client of cluster {unweighted[0]} the weight 0"
    if not all(0 <= began <= event.seconds < np.inf for began in event.began):
        return f"begins at {list(event.began)} s and ends at {event.seconds:g} s; it must begin at 0 or later, then end"
    return ""
