"""The time and memory that a very long schedule will take, estimated before it is made."""

import os
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from warnings import warn

from atoll.engine.method import Method
from atoll.settings.choices import method_kind
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, SettingWarning
from atoll.support.units import format_seconds

MANY = 20_000  # rounds, or merges if a round is a local step; shorter schedules take seconds
TRIED = 200  # rounds of the trial schedule
PATIENCE_SECONDS = 30.0
SHARE_OF_MEMORY = 0.5  # that a schedule may take without a warning


@dataclass(frozen=True)
class ScheduleEstimate:
    """The cost of making a whole schedule."""

    events: float
    seconds: float
    memory_bytes: float

    def __str__(self) -> str:
        return (
            f"making its schedule of about {self.events:,.0f} events takes about {format_seconds(self.seconds)} and "
            f"{self.memory_bytes / 2**30:,.1f} GiB of memory"
        )


def foresee(settings: Settings, make: Callable[[int], Method]) -> None:
    """Warn if a schedule of many rounds will take long to make, or much memory."""
    unit = unit_of(settings)
    if settings.rounds <= MANY * unit:
        return
    try:
        found, memory = _estimate(make, TRIED * unit, settings.rounds), _memory_bytes()
    except InputError:  # settings that are only right for more rounds; of others the whole schedule tells
        return
    if found.memory_bytes > memory:
        raise InputError(f"rounds = {settings.rounds}: {found}, but this machine has {memory / 2**30:,.1f}; lower it")
    if found.seconds > PATIENCE_SECONDS or found.memory_bytes > SHARE_OF_MEMORY * memory:
        warn(f"rounds = {settings.rounds}: {found}", SettingWarning, stacklevel=2)


def unit_of(settings: Settings) -> int:
    """Return the number of which a schedule's rounds are a multiple."""
    is_step = method_kind(settings).rounds_are_local_steps
    return int(settings.method.get("intra_rounds", 1)) * settings.local.steps if is_step else 1


def _estimate(make: Callable[[int], Method], tried: int, rounds: int) -> ScheduleEstimate:
    make(tried)  # untimed, so that one-time work does not count
    begun = time.perf_counter()
    make(tried)
    seconds = time.perf_counter() - begun
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        method = make(tried)
        memory_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()
    more = rounds / tried
    return ScheduleEstimate(len(method.schedule) * more, seconds * more, memory_bytes * more)


def _memory_bytes() -> float:
    """Return the machine's memory; infinite if unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
