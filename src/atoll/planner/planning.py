"""From an experiment and a budget to plans worth racing, by their schedules alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atoll.faults.availability import Availability
from atoll.planner.budget import PlanBudget
from atoll.planner.candidates import Dropped, make_candidates, usual_axes
from atoll.planner.pool import ProcessPool
from atoll.planner.scoring import Scored, prune, score_all, seconds_of
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.sweep.axes import Axis

_SHORT = "the first event"


@dataclass(frozen=True)
class Field:
    """The plans of an experiment, selected by their schedules.

    Attributes:
        seconds: virtual time of a run; inf if bytes alone end it.
        plans: those worth racing.
        dropped: the others, with reasons.
        pool: their experiments.
    """

    seconds: float
    plans: list[Scored]
    dropped: list[Dropped]
    pool: ProcessPool


def sort_out(
    settings: Settings,
    axes: Sequence[Axis],
    budget: PlanBudget,
    show: Callable[[int, int], None] = lambda done, of: None,
) -> Field:
    """Return the plans of an experiment that no other plan makes redundant.

    Besides the method's open choices it varies `axes`. `show` is told how many plans are scored, and of how many.
    """
    pool = ProcessPool()
    seconds = seconds_of(settings, budget, pool)
    _require_known(pool.make(settings).conditions.availability, seconds)
    look_ahead = seconds if math.isfinite(seconds) else seconds_of(settings, PlanBudget(), pool)
    made, dropped = make_candidates(settings, usual_axes(settings, axes), look_ahead)
    scored = list[Scored]()
    for done, found in enumerate(score_all(made, seconds, budget.size, pool), 1):
        if isinstance(found, Scored):
            scored.append(found)
        else:
            dropped.append(found)
        show(done, len(made))
    if not scored:
        raise InputError(_why_none(dropped, seconds, budget.size))
    plans, needless = prune(scored)
    return Field(seconds, plans, [*dropped, *needless], pool)


def _require_known(availability: Availability | None, seconds: float) -> None:
    """Refuse a trace that ends before the budget: only plans with few, long events would remain."""
    if availability is not None and availability.end < seconds < math.inf:
        raise InputError(
            f"faults.availability_file = {availability.path!r}: ends at {availability.end:g} s, but plans are for "
            f"{seconds:g} s; set --seconds {availability.end:g}, or give a longer file"
        )


def _why_none(dropped: Sequence[Dropped], seconds: float, size: float | None) -> str:
    """Return why no plan is left: a budget too small for all, or the first plan's reason."""
    first = dropped[0]
    short = [plan for plan in dropped if _SHORT in plan.why]
    if len(short) == len(dropped):
        given = f"--seconds {seconds:g}" if size is None else f"--bytes {size:g}"
        return f"{given}: no plan's first event fits; for example, {first.name}: {first.why}"
    if all(plan.why == first.why for plan in dropped):  # such as an error in a file
        return first.why
    return f"no plan can be run; for example, {first.name}: {first.why}"
