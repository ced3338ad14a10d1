"""Racing plans in virtual time: all train for a while, the better third goes on three times as long, and so on.

With a target nobody trains on who can no longer be first: virtual time only goes up. The plans of a seed train on the
same data, from the same model, with the same draws, so that what is planned is all that differs. A run that goes on is
the one that was stopped, in its own folder, so that a race costs little more than its longest runs, and goes on after
any stop: what is there decides what comes next.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from atoll.executors.cost import Units, time_unit
from atoll.planner.budget import PlanBudget
from atoll.planner.candidates import with_rounds
from atoll.planner.entrants import (
    GIVES_UP,
    Entrant,
    cost_of,
    is_there,
    latest,
    level_of,
    meets,
    rank,
    reached,
    rows_of,
    seed_folder,
    settle,
)
from atoll.planner.pool import ProcessPool
from atoll.planner.scoring import Scored
from atoll.runs.run import run_events
from atoll.runs.run_folder import RunFolder
from atoll.schedules.events import Schedule
from atoll.settings.sections import Settings
from atoll.support.errors import RunError
from atoll.sweep.sweep_plan import require_same

SHARE = 3  # one plan in so many goes on, so many times as long
FINALISTS = 2  # plans that run to the end, with every seed
LEAST_EVENTS = 2  # merges of each cluster before any plan is out, in the slowest plan that is waited for
WORTH_IT = 1.5  # a rung is one if the race is so many times as long, at least
PATIENCE = 2  # so many times the middling plan's time between merges is waited for
PROBES = 100  # of a run that fills the budget
SAMPLES = 2_000  # that the training loss of a racing run is probed on, which decides nothing
_ROUNDING = 1e-9  # of a sum of seconds

Tell = Callable[[str], None]


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
    race: Race,
    entrants: Sequence[Entrant],
    budget: PlanBudget,
    pool: ProcessPool,
    tell: Tell,
    is_over: Callable[[], bool],
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
            require_same(entrant.folder / seed_folder(seed), _racing(entrant.plan, seed))
    going, out = list(entrants), list[Entrant]()
    for (until, _), after in zip(race.rungs, (*race.rungs[1:], None), strict=True):
        tell(f"{len(going)} plans until {until:,.0f} s of virtual time")
        for entrant in going:
            _train(entrant, 0, min(until, latest(going, until, budget)), budget, pool, is_over)
        failed = [entrant for entrant in going if entrant.problem]
        going = sorted((entrant for entrant in going if not entrant.problem), key=lambda e: rank(e, until, budget))
        if not going:
            raise RunError(f"every plan failed, such as {entrants[0].name}: {entrants[0].problem}")
        left = FINALISTS if after is None else after[1]
        for entrant in going[left:]:
            entrant.left_at, entrant.level = reached(entrant, until), level_of(entrant, 0, until, budget)
        going, out = going[:left], [*going[left:], *out, *failed]
    allowed = math.inf
    for entrant in going:
        tell(f"{entrant.name}, {race.seeds} seeds" if race.seeds > 1 else entrant.name)
        _finish(entrant, race.seeds, until, allowed, budget, pool, is_over)
        if budget.target is not None and not entrant.problem:
            allowed = min(allowed, GIVES_UP * sum(entrant.costs))
    ranked = [*sorted(going, key=lambda entrant: cost_of(entrant, budget)), *out]
    return sorted(ranked, key=lambda entrant: bool(entrant.problem))


def _finish(
    entrant: Entrant,
    seeds: int,
    until: float,
    allowed: float,
    budget: PlanBudget,
    pool: ProcessPool,
    is_over: Callable[[], bool],
) -> None:
    """Let a finalist train with every seed, until its seconds to the target are more in all than are allowed."""
    for seed in range(seeds):
        if seed:
            left = until if math.isinf(allowed) else allowed - sum(entrant.costs)
            _train(entrant, seed, min(until, left), budget, pool, is_over)
        settle(entrant, seed, until, budget)
        if entrant.problem or sum(entrant.costs) > allowed:
            break
    missing = seeds - len(entrant.costs)
    entrant.costs += [math.inf] * (0 if entrant.problem else missing)
    entrant.is_behind = math.isfinite(allowed) and math.isinf(sum(entrant.costs))


def _racing(plan: Scored, seed: int) -> Settings:
    """Return a plan's settings with few probes, and its own seed or one after it."""
    settings = plan.candidate.settings
    every = with_rounds(settings, plan.score.rounds / PROBES).rounds
    samples = min(settings.run.evaluate_samples or SAMPLES, SAMPLES)
    run = settings.run.model_copy(update={"evaluate_every": every, "evaluate_samples": samples})
    return settings.model_copy(update={"run": run, "seed": settings.seed + seed})


def _train(
    entrant: Entrant, seed: int, until: float, budget: PlanBudget, pool: ProcessPool, is_over: Callable[[], bool]
) -> None:
    """Let a plan train until a virtual time, or until it meets the target; note what went wrong."""
    place = entrant.folder / seed_folder(seed)
    if is_over():
        raise KeyboardInterrupt
    if entrant.problem or RunFolder(place).is_finished or is_there(rows_of(entrant, seed), until, budget):
        return
    experiment = pool.make(_racing(entrant.plan, seed))
    schedule = experiment.method.schedule
    column, wanted = budget.column_of(schedule.has_server), _events_by(schedule, until)
    try:
        with closing(run_events(experiment, place, resume=True)) as steps:
            for progress in steps:
                value = (progress.row or {}).get(column)
                met = budget.target is not None and value is not None and meets(value, budget.target, budget)
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


def seconds_an_update(plan: Scored, pool: ProcessPool) -> float:
    """Return the seconds that one local training takes here, by letting the first one of a plan train."""
    experiment = pool.make(plan.candidate.settings)
    units = Units(experiment.method.schedule.occupied, whole=experiment.execution.choice.whole)
    cohort = units.first(experiment.training.initial_models()[0])
    with closing(experiment.execution.make_executor()) as executor:
        time_unit(executor, cohort)  # the first also imports, or forks
        return time_unit(executor, cohort) / max(1, len(cohort.clients))
