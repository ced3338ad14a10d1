"""Plans in a race: what each has reached, and their order, by their runs' rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from atoll.planner.budget import PlanBudget
from atoll.planner.scoring import Scored
from atoll.report.reading.runs import NotBegun, Run, read_run
from atoll.report.tables.run_tables import first_met
from atoll.runs.columns import is_share
from atoll.runs.run_folder import RunFolder
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.estimates import Estimate, estimate, estimate_share

GIVES_UP = 1.1  # a plan stops once it takes this many times as long to the target as another one
_SMOOTHED = 1 / 4  # last part of the time so far over which metrics are averaged when a race decides


@dataclass
class Entrant:
    """A plan in the race.

    Attributes:
        plan: the plan and its score.
        folder: of its runs, with one folder per seed in it.
        left_at: virtual seconds at which it was eliminated; None: it ran to the end.
        level: its metric when it was eliminated or, for a finalist, at the end, the mean over its seeds; nan before.
        costs: a finalist's seconds to the target, inf if missed, or its levels at the end, one per seed.
        sizes: bytes sent until the target is met, for the seeds that meet it.
        is_behind: whether it is a finalist that was stopped once another one was certain to be earlier.
        problem: why a run failed; empty if none did.
    """

    plan: Scored
    folder: Path
    left_at: float | None = None
    level: float = math.nan
    costs: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    is_behind: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        """The plan's name."""
        return self.plan.name


def rows_of(entrant: Entrant, seed: int = 0) -> Run | None:
    """Return a plan's run so far; None before its first row."""
    place = entrant.folder / seed_folder(seed)
    try:
        return read_run(place) if RunFolder(place).is_run else None
    except NotBegun:
        return None


def seed_folder(seed: int) -> str:
    """Return the name of a seed's folder within a plan's."""
    return f"seed-{seed}"


def estimate_of(entrant: Entrant, budget: PlanBudget) -> Estimate | None:
    """Return a finalist's mean over seeds, and its interval; None if it has none, or a seed misses the target."""
    if not entrant.costs or not np.isfinite(entrant.costs).all():
        return None
    of_shares = budget.target is None and is_share(budget.column_of())
    return (estimate_share if of_shares else estimate)(entrant.costs)


def met_by(run: Run | None, until: float, budget: PlanBudget) -> float | None:
    """Return the virtual seconds at which a run met the target; None if not by `until`, or there is no target."""
    probe = None if run is None else _met_at(run, budget)
    seconds = math.inf if run is None or probe is None else float(run.rows["virtual_time"][probe])
    return seconds if seconds <= until else None


def reached(entrant: Entrant, until: float) -> float:
    """Return the virtual seconds at which a plan stopped training, at most `until`."""
    run = rows_of(entrant)
    return until if run is None else min(until, float(run.rows["virtual_time"][-1]))


def latest(entrants: Sequence[Entrant], until: float, budget: PlanBudget) -> float:
    """Return until when training is worthwhile, given that one of these met the target by `until`; inf if none did."""
    met = (met_by(rows_of(entrant), until, budget) for entrant in entrants)
    return GIVES_UP * min((seconds for seconds in met if seconds is not None), default=math.inf)


def is_there(run: Run | None, until: float, budget: PlanBudget) -> bool:
    """Return whether a run needs no more training."""
    return run is not None and bool(run.rows["virtual_time"][-1] >= until or _met_at(run, budget) is not None)


def meets(value: float, target: float, budget: PlanBudget) -> bool:
    """Return whether a value meets the target."""
    return value <= target if budget.falls else value >= target


def values_of(run: Run, budget: PlanBudget) -> Floats:
    """Return the metric by which a run is judged, one value per evaluation."""
    column = budget.column_of(run.rows)
    if column not in run.rows:
        raise InputError(f"--metric {column}: {run.folder} has no such column, but {', '.join(run.rows)}")
    return run.rows[column]


def _met_at(run: Run, budget: PlanBudget) -> int | None:
    """Return the row at which a run meets the target; None if it does not, or there is no target."""
    return None if budget.target is None else first_met(values_of(run, budget), budget.target, budget.falls)


def level_of(entrant: Entrant, seed: int, until: float, budget: PlanBudget) -> float:
    """Return a plan's metric at a virtual time, averaged over the last part of it; nan without an evaluation."""
    if (run := rows_of(entrant, seed)) is None:
        return math.nan
    seconds, values = run.rows["virtual_time"], values_of(run, budget)
    now = (seconds <= until) & np.isfinite(values)
    if not now.any():
        return math.nan
    return float(values[now & (seconds >= (1 - _SMOOTHED) * min(until, float(seconds[now].max())))].mean())


def rank(entrant: Entrant, until: float, budget: PlanBudget) -> tuple[bool, float]:
    """Return a sort key of plans at a rung: the time at which the target was met, else the level."""
    if (met := met_by(rows_of(entrant), until, budget)) is not None:
        return False, met
    level = level_of(entrant, 0, until, budget)
    return True, math.inf if math.isnan(level) else level if budget.falls else -level


def cost_of(entrant: Entrant, budget: PlanBudget) -> tuple[bool, float, float]:
    """Return a sort key of finalists: the mean over seeds, and for those that missed the target their level."""
    sign = 1 if budget.falls else -1
    mean = float(np.mean(entrant.costs or [math.nan])) * (1 if budget.target is not None else sign)
    cost, level = (key if math.isfinite(key) else math.inf for key in (mean, sign * entrant.level))
    return bool(entrant.problem), cost, level


def settle(entrant: Entrant, seed: int, until: float, budget: PlanBudget) -> None:
    """Record the result of a finalist's run."""
    if (run := rows_of(entrant, seed)) is None or entrant.problem:
        return
    probe = _met_at(run, budget)
    if budget.target is None:
        entrant.costs.append(level_of(entrant, seed, until, budget))
    elif probe is None:
        entrant.costs.append(math.inf)
    else:
        entrant.costs.append(float(run.rows["virtual_time"][probe]))
        entrant.sizes.append(float(run.bytes_sent[probe]))
