"""Racing plans in virtual time: all train for a while, the better third goes on three times as long, and so on.

A run that goes on is the one that was stopped, in its own folder, so that a race costs little more than its longest
runs, and goes on after any stop: what is there decides what comes next.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from atoll.executors.cost import Units, time_unit
from atoll.experiment.settings import Settings
from atoll.planner.budget import Budget
from atoll.planner.candidates import with_rounds
from atoll.planner.pool import Pool
from atoll.planner.scoring import Scored
from atoll.report.runs import NotBegun, Run, read_run
from atoll.report.tables import first_met
from atoll.runs.folder import RunFolder
from atoll.runs.run import run_events
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, RunError
from atoll.support.estimates import Estimate, estimate, estimate_share
from atoll.sweep.planning import require_same

SHARE = 3  # one plan in so many goes on, so many times as long
FINALISTS = 2  # plans that run to the end, with every seed
LEAST_EVENTS = 3  # merges of each cluster, in the middling plan, before any plan is out
PROBES = 100  # of a run that fills the budget
SAMPLES = 2_000  # that the training loss of a racing run is probed on, which decides nothing
_SMOOTHED = 1 / 4  # of the time so far, over whose last part probes are averaged where a race decides

Tell = Callable[[str], None]


@dataclass
class Entrant:
    """A plan in the race.

    Attributes:
        plan: with its score.
        folder: of its runs, one a seed below it.
        left_at: virtual seconds at which it was out; None: it ran to the end.
        level: what it was judged by when it was out or, of a finalist, in the end; nan before.
        costs: a finalist's seconds to the target, inf where it is missed, or its levels at the end, one a seed.
        sizes: bytes sent to the target, as `costs`, where it is met.
        problem: why a run failed; empty if none has.
    """

    plan: Scored
    folder: Path
    left_at: float | None = None
    level: float = math.nan
    costs: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def name(self) -> str:
        """The plan's."""
        return self.plan.name


@dataclass(frozen=True)
class Race:
    """A race before it begins: until when all train, who is left, and what it takes.

    Attributes:
        rungs: pairs of virtual seconds and plans that train until then.
        seeds: of the finalists.
        updates: local trainings that are expected in all.
    """

    rungs: tuple[tuple[float, int], ...]
    seeds: int
    updates: float


def lay_out(plans: Sequence[Scored], seeds: int) -> Race:
    """Return the race of these plans: each rung is three times as long as the one before, and has a third of them."""
    end = max(plan.score.seconds for plan in plans)
    merge = float(np.median([plan.score.seconds / plan.score.merges for plan in plans]))
    until = min(LEAST_EVENTS * merge, end)  # who has hardly merged by then is out
    rungs, left = list[tuple[float, int]](), len(plans)
    while left > FINALISTS and until * SHARE <= end:
        rungs.append((until, left))
        until, left = until * SHARE, max(FINALISTS, -(-left // SHARE))
    rungs.append((end, left))
    virtual, begun = 0.0, 0.0
    for until, left in rungs:
        virtual, begun = virtual + left * (until - begun), until
    pace = float(np.mean([plan.score.client_updates / plan.score.seconds for plan in plans]))
    finalists = min(FINALISTS, len(plans))
    return Race(tuple(rungs), seeds, pace * (virtual + finalists * (seeds - 1) * end))


def carry_out(
    race: Race, entrants: Sequence[Entrant], budget: Budget, pool: Pool, tell: Tell, is_over: Callable[[], bool]
) -> list[Entrant]:
    """Carry the race out, or on; return the plans, the best first.

    A plan whose run fails is out. `is_over` is asked after every event; once it is true, the race stops where it can
    go on, with a `KeyboardInterrupt`.

    Raises:
        InputError: a folder that holds something else.
        RunError: every plan has failed.
    """
    for entrant in entrants:
        for seed in range(race.seeds):
            require_same(entrant.folder / _seed_folder(seed), _racing(entrant.plan, seed))
    going = list(entrants)
    for (until, _), after in zip(race.rungs, (*race.rungs[1:], None), strict=True):
        tell(f"{len(going)} plans until {until:,.0f} s of virtual time")
        for entrant in going:
            _train(entrant, 0, until, budget, pool, is_over)
        going = sorted((entrant for entrant in going if not entrant.problem), key=lambda e: _rank(e, until, budget))
        if not going:
            raise RunError(f"every plan failed, such as {entrants[0].name}: {entrants[0].problem}")
        if after is not None:
            for entrant in going[after[1] :]:
                entrant.left_at, entrant.level = until, _level(entrant, 0, until, budget)
            going = going[: after[1]]
    finalists, beaten = going[:FINALISTS], going[FINALISTS:]
    for entrant in beaten:
        entrant.left_at, entrant.level = until, _level(entrant, 0, until, budget)
    for seed in range(1, race.seeds):
        tell(f"{len(finalists)} finalists, seed {seed}")
        for entrant in finalists:
            _train(entrant, seed, until, budget, pool, is_over)
    for entrant in finalists:
        _settle(entrant, race.seeds, until, budget)
    return _in_order(entrants, budget)


def _in_order(entrants: Sequence[Entrant], budget: Budget) -> list[Entrant]:
    """Return finalists by what they cost or reached, then the others by how long they stayed in, and their level."""

    def key(entrant: Entrant) -> tuple[bool, float, float, float]:
        level = -entrant.level if not budget.falls else entrant.level
        if entrant.problem:
            return True, math.inf, math.inf, math.inf
        mean = float(np.mean(entrant.costs)) if entrant.costs else math.inf
        cost = mean if budget.target is not None or budget.falls or not entrant.costs else -mean
        return False, -(entrant.left_at or math.inf), cost, level

    return sorted(entrants, key=key)


def estimate_of(entrant: Entrant, budget: Budget) -> Estimate | None:
    """Return a finalist's mean over seeds, and its interval; None where it has none, or a seed misses the target."""
    if not entrant.costs or not np.isfinite(entrant.costs).all():
        return None
    share = budget.target is None and not budget.falls and all(0 <= cost <= 1 for cost in entrant.costs)
    return estimate_share(entrant.costs) if share else estimate(entrant.costs)


def rows_of(entrant: Entrant, seed: int = 0) -> Run | None:
    """Return a run of a plan as far as it is; None before its first row."""
    try:
        return read_run(entrant.folder / _seed_folder(seed))
    except NotBegun:
        return None
    except InputError:
        if RunFolder(entrant.folder / _seed_folder(seed)).is_run:
            raise
        return None


def _seed_folder(seed: int) -> str:
    return f"seed-{seed}"


def _racing(plan: Scored, seed: int) -> Settings:
    """Return a plan's settings with few probes, and its own seed or one after it."""
    settings = plan.candidate.settings
    every = with_rounds(settings, plan.score.rounds / PROBES).rounds
    samples = min(settings.run.evaluate_samples or SAMPLES, SAMPLES)
    run = settings.run.model_copy(update={"evaluate_every": every, "evaluate_samples": samples})
    return settings.model_copy(update={"run": run, "seed": settings.seed + seed})


def _train(entrant: Entrant, seed: int, until: float, budget: Budget, pool: Pool, is_over: Callable[[], bool]) -> None:
    """Let a plan train until a virtual time, or until it meets the target; note what went wrong."""
    place = entrant.folder / _seed_folder(seed)
    if is_over():
        raise KeyboardInterrupt
    if entrant.problem or RunFolder(place).is_finished or _is_there(rows_of(entrant, seed), until, budget):
        return
    experiment = pool.make(_racing(entrant.plan, seed))
    column, target = budget.column_of(experiment.method.schedule.has_server), budget.target
    try:
        with closing(run_events(experiment, place, resume=True)) as steps:
            for progress in steps:
                row = progress.row or {}
                met = target is not None and (value := row.get(column)) is not None and _meets(value, target, budget)
                if progress.is_settled and (met or row.get("virtual_time", 0.0) >= until or is_over()):
                    break
    except RunError as error:
        entrant.problem = str(error)
    if is_over():
        raise KeyboardInterrupt


def _is_there(run: Run | None, until: float, budget: Budget) -> bool:
    """Return whether a run has gone as far as it need."""
    if run is None:
        return False
    return bool(run.rows["virtual_time"][-1] >= until) or _met_at(run, budget) is not None


def _meets(value: float, target: float, budget: Budget) -> bool:
    return value <= target if budget.falls else value >= target


def _values(run: Run, budget: Budget) -> Floats:
    """Return what a run is judged by, one a probe."""
    column = budget.column_of("mean_cluster_accuracy" not in run.rows)
    if column not in run.rows:
        raise InputError(f"--metric {column}: {run.folder} has no such column; it has {', '.join(run.rows)}")
    return run.rows[column]


def _met_at(run: Run, budget: Budget) -> int | None:
    """Return the probe at which a run meets the target; None if it has not, or there is none."""
    return None if budget.target is None else first_met(_values(run, budget), budget.target, budget.falls)


def _level(entrant: Entrant, seed: int, until: float, budget: Budget) -> float:
    """Return what a plan has reached by a virtual time, averaged over the last part of it; nan without a probe."""
    run = rows_of(entrant, seed)
    if run is None:
        return math.nan
    seconds, values = run.rows["virtual_time"], _values(run, budget)
    now = (seconds <= until) & np.isfinite(values)
    if not now.any():
        return math.nan
    late = now & (seconds >= (1 - _SMOOTHED) * min(until, float(seconds[now].max())))
    return float(values[late].mean())


def _rank(entrant: Entrant, until: float, budget: Budget) -> tuple[bool, float]:
    """Return what orders plans at a rung: the time at which the target was met, else the level."""
    run = rows_of(entrant)
    probe = None if run is None else _met_at(run, budget)
    if run is not None and probe is not None:
        return False, float(run.rows["virtual_time"][probe])
    level = _level(entrant, 0, until, budget)
    return True, math.inf if math.isnan(level) else level if budget.falls else -level


def _settle(entrant: Entrant, seeds: int, until: float, budget: Budget) -> None:
    """Note what a finalist's runs have come to."""
    for seed in range(seeds):
        run = rows_of(entrant, seed)
        if run is None or entrant.problem:
            return
        probe = _met_at(run, budget)
        if budget.target is None:
            entrant.costs.append(_level(entrant, seed, until, budget))
        elif probe is None:
            entrant.costs.append(math.inf)
        else:
            entrant.costs.append(float(run.rows["virtual_time"][probe]))
            entrant.sizes.append(float(run.rows["bytes_up"][probe] + run.rows["bytes_down"][probe]))
    entrant.level = _level(entrant, 0, until, budget)


def seconds_an_update(plan: Scored, pool: Pool) -> float:
    """Return the seconds that one local training takes here, by letting the first one of a plan train."""
    experiment = pool.make(plan.candidate.settings)
    units = Units(experiment.method.schedule.occupied, whole=experiment.executor_choice.whole)
    cohort = units.first(experiment.initial_models()[0])
    with closing(experiment.make_executor()) as executor:
        time_unit(executor, cohort)  # the first also imports, or forks
        return time_unit(executor, cohort) / max(1, len(cohort.clients))
