"""From settings to the duration of clients' work."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from warnings import warn

import numpy as np

from atoll.engine.engine import Method
from atoll.experiment.networks import speeds, uploads
from atoll.local.rule import LocalRule
from atoll.schedules.events import Clock, Event
from atoll.schedules.packed import pack
from atoll.settings.choices import method_needs
from atoll.settings.validation import Settings
from atoll.support.arrays import Ids
from atoll.support.errors import SettingWarning


def make_clock(settings: Settings, clients: int, sizes: Ids, rule: LocalRule, share: float) -> Clock:
    """Return the duration of each client's training and upload, for updates of this share of the model's bytes.

    The partition makes `clients`, which differ from those that train, of `sizes`, for pooled data.
    """
    local, deadline = settings.local, settings.faults.deadline_seconds
    batch = sizes if local.batch_size == "full" else np.full(len(sizes), local.batch_size)
    zeta, sending = speeds(settings, clients), uploads(settings, clients)
    if len(sizes) != len(zeta):  # pooled data belong to no one client
        zeta, sending = np.full(len(sizes), zeta.mean()), np.full(len(sizes), sending.mean())
    different = np.unique(sizes)
    steps = np.array([rule.steps_of(size) for size in different.tolist()])[np.searchsorted(different, sizes)]
    compute = np.asarray(batch * steps * zeta, float)
    return Clock(compute, sending * share, np.inf if deadline is None else deadline)


def put_on_clock(settings: Settings, method: Method, clock: Clock) -> tuple[Method, Clock | None]:
    """Return the method, and the clock of its schedule; None if it has a time of its own.

    A custom function that asks for no clock makes rounds of one second, and would lead in virtual time; its rounds take
    what their clients need. If its events take other seconds, there is a `SettingWarning`.
    """
    if method_needs(settings, "clock"):
        return method, clock
    has_own = any(method_needs(settings, name) for name in ("network", "phases", "pace", "deadline_seconds"))
    if ":" not in settings.method.name or has_own:
        return method, None
    events = method.schedule.events
    if method.arrivals is None and all(each.seconds - 1 == i == max(each.began) for i, each in enumerate(events)):
        return replace(method, schedule=replace(method.schedule, events=pack(_timed(events, clock)))), clock
    told = "takes no `clock`, so its virtual seconds are its own and not those of other methods"
    warn(f"method.name = {settings.method.name!r}: {told}; compare it by rounds or client updates", SettingWarning, 2)
    return replace(method, own_seconds=True), None


def _timed(events: Sequence[Event], clock: Clock) -> Iterator[Event]:
    """Yield events one after the other, each as long as its slowest client takes."""
    now = 0.0
    for event in events:
        seconds = event.intra_rounds * clock.event_seconds(event.cohort, now) if len(event.cohort) else 0.0
        began, now = now, now + seconds
        yield replace(event, began=(began,) * len(event.active), seconds=now)
