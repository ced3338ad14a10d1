"""Racing plans in virtual time: all train for a while, the better third goes on three times as long, and so on.

With a target nobody trains on who can no longer be first: virtual time only goes up. The plans of a seed train on the
same data, from the same model, with the same draws, so that what is planned is all that differs. A run that goes on is
the one that was stopped, in its own folder, so that a race costs little more than its longest runs, and goes on after
any stop: what is there decides what comes next.
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
from atoll.schedules.events import Schedule
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, RunError
from atoll.support.estimates import Estimate, estimate, estimate_share
from atoll.sweep.planning import require_same

SHARE = 3  # one plan in so many goes on, so many times as long
FINALISTS = 2  # plans that run to the end, with every seed
LEAST_EVENTS = 2  # merges of each cluster before any plan is out, in the slowest plan that is waited for
WORTH_IT = 1.5  # a rung is one if the race is so many times as long, at least
PATIENCE = 2  # so many times the middling plan's time between merges is waited for
GIVES_UP = 1.1  # a plan that is so many times as late at the target as another one trains no longer
PROBES = 100  # of a run that fills the budget
SAMPLES = 2_000  # that the training loss of a racing run is probed on, which decides nothing
_ROUNDING = 1e-9  # of a sum of seconds
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
        is_behind: whether it is a finalist that was stopped once another one was sure to be earlier.
        problem: why a run failed; empty if none has.
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
    """Return the race of these plans: each rung is three times as long as the one before, and has a third of them.

    The first one is as long as the slowest plan needs for a few whole merges: where clusters wait for each other, all
    is gained at once at their end. A plan that merges far more rarely than others is not waited for.
    """
    end = max(plan.score.seconds for plan in plans)
    merges = np.array([plan.score.seconds / plan.score.merges for plan in plans])
    merge = float(merges[merges <= PATIENCE * np.median(merges)].max())
    until = min(LEAST_EVENTS * merge * (1 + _ROUNDING), end)
    rungs, left = list[tuple[float, int]](), len(plans)
    while left > FINALISTS and until * WORTH_IT <= end:
        rungs.append((until, left))
        until, left = min(until * SHARE, end), max(FINALISTS, -(-left // SHARE))
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
    going, out = list(entrants), list[Entrant]()
    for (until, _), after in zip(race.rungs, (*race.rungs[1:], None), strict=True):
        tell(f"{len(going)} plans until {until:,.0f} s of virtual time")
        for entrant in going:
            _train(entrant, 0, min(until, _latest(going, until, budget)), budget, pool, is_over)
        failed = [entrant for entrant in going if entrant.problem]
        going = sorted((entrant for entrant in going if not entrant.problem), key=lambda e: _rank(e, until, budget))
        if not going:
            raise RunError(f"every plan failed, such as {entrants[0].name}: {entrants[0].problem}")
        left = FINALISTS if after is None else after[1]
        for entrant in going[left:]:
            entrant.left_at, entrant.level = _reached(entrant, until), _level(entrant, 0, until, budget)
        going, out = going[:left], [*going[left:], *out, *failed]
    allowed = math.inf
    for entrant in going:
        tell(f"{entrant.name}, {race.seeds} seeds" if race.seeds > 1 else entrant.name)
        _finish(entrant, race.seeds, until, allowed, budget, pool, is_over)
        if budget.target is not None and not entrant.problem:
            allowed = min(allowed, GIVES_UP * sum(entrant.costs))
    ranked = [*sorted(going, key=lambda entrant: _cost_of(entrant, budget)), *out]
    return sorted(ranked, key=lambda entrant: bool(entrant.problem))


def _finish(
    entrant: Entrant, seeds: int, until: float, allowed: float, budget: Budget, pool: Pool, is_over: Callable[[], bool]
) -> None:
    """Let a finalist train with every seed, until its seconds to the target are more in all than are allowed."""
    for seed in range(seeds):
        if seed:
            left = until if math.isinf(allowed) else allowed - sum(entrant.costs)
            _train(entrant, seed, min(until, left), budget, pool, is_over)
        _settle(entrant, seed, until, budget)
        if entrant.problem or sum(entrant.costs) > allowed:
            break
    missing = seeds - len(entrant.costs)
    entrant.costs += [math.inf] * (0 if entrant.problem else missing)
    entrant.is_behind = math.isfinite(allowed) and math.isinf(sum(entrant.costs))


def _latest(entrants: Sequence[Entrant], until: float, budget: Budget) -> float:
    """Return until when it is worth training on, once one of these has met the target by a virtual time; else inf."""
    met = (_met_by(rows_of(entrant), until, budget) for entrant in entrants)
    return GIVES_UP * min((seconds for seconds in met if seconds is not None), default=math.inf)


def _reached(entrant: Entrant, until: float) -> float:
    """Return the virtual seconds by which a plan stopped training, at most those given."""
    run = rows_of(entrant)
    return until if run is None else min(until, float(run.rows["virtual_time"][-1]))


def _met_by(run: Run | None, until: float, budget: Budget) -> float | None:
    """Return the virtual seconds at which a run met the target; None if it had not by then, or there is none."""
    probe = None if run is None else _met_at(run, budget)
    seconds = math.inf if run is None or probe is None else float(run.rows["virtual_time"][probe])
    return seconds if seconds <= until else None


def _cost_of(entrant: Entrant, budget: Budget) -> tuple[bool, float, float]:
    """Return what orders finalists: the mean over seeds, and of those that missed the target their level."""
    mean, level = float(np.mean(entrant.costs or [math.inf])), entrant.level
    is_cost = budget.target is not None or budget.falls
    return bool(entrant.problem), mean if is_cost else -mean, level if budget.falls else -level


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
    schedule = experiment.method.schedule
    column, wanted = budget.column_of(schedule.has_server), _events_by(schedule, until)
    try:
        with closing(run_events(experiment, place, resume=True)) as steps:
            for progress in steps:
                value = (progress.row or {}).get(column)
                met = budget.target is not None and value is not None and _meets(value, budget.target, budget)
                may_stop = progress.is_settled and (is_over() or _is_near(schedule, progress.events_done, wanted))
                if met or may_stop:  # who has met the target never goes on, so that nothing is lost
                    break
    except RunError as error:
        entrant.problem = str(error)
    if is_over():
        raise KeyboardInterrupt


def _events_by(schedule: Schedule, until: float) -> int:
    """Return how many events are over by a virtual time."""
    return int(np.searchsorted([event.seconds for event in schedule.events], until, side="right"))


def _is_near(schedule: Schedule, done: int, wanted: int) -> bool:
    """Return whether a run is as near to so many events as it comes: some train together. The last ends by itself."""
    return done < len(schedule) and (done >= wanted or done + len(schedule.ready(done)) - wanted > wanted - done)


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
    met = _met_by(rows_of(entrant), until, budget)
    if met is not None:
        return False, met
    level = _level(entrant, 0, until, budget)
    return True, math.inf if math.isnan(level) else level if budget.falls else -level


def _settle(entrant: Entrant, seed: int, until: float, budget: Budget) -> None:
    """Note what a finalist's run has come to."""
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
