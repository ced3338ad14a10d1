"""Racing plans in virtual time: all train for a while, the better third continues for three times as long, and so on.

With a target a plan stops once it can no longer be first. With one seed all plans train on the same data, from the same
model, with the same draws, so they differ only in what is planned. A plan that continues resumes its own run, so a race
costs little more than its longest runs and can be resumed at any point: the folders determine the next step.
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
from atoll.runs.run import RunProgress, run_events
from atoll.runs.run_folder import RunFolder
from atoll.schedules.events import Schedule
from atoll.settings.validation import Settings
from atoll.support.errors import RunError
from atoll.support.files import make_folder, to_json, write_atomically
from atoll.support.wording import counted
from atoll.sweep.sweep_folder import require_same

SHARE = 3  # halving factor: 1 in 3 continues, with 3 times the budget
FINALISTS = 2  # plans that run to the end, with every seed
LEAST_EVENTS = 2  # merges of each cluster before any plan is eliminated, in the slowest plan that counts
WORTH_IT = 1.5  # a rung is added only if the race is at least this many times as long
PATIENCE = 2  # a plan whose time between merges exceeds this multiple of the median does not count
PROBES = 100  # evaluations of a run that fills the budget
SAMPLES = 2_000  # for the training loss of a racing run, which decides nothing
_ROUNDING = 1e-9  # relative, of a sum of seconds

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Race:
    """The layout of a race.

    Attributes:
        rungs: pairs (virtual seconds, number of plans that train until then).
        seeds: number of seeds of the finalists.
        updates: expected number of local trainings in total.
    """

    rungs: tuple[tuple[float, int], ...]
    seeds: int
    updates: float


def lay_out(plans: Sequence[Scored], seeds: int) -> Race:
    """Return the race of these plans: each rung is three times as long as the previous one, with a third of the plans.

    The first rung lasts until the slowest plan has made a few whole merges: if clusters wait for each other, all
    progress comes at their end. Plans that merge far more rarely than others do not count here.
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
    return Race(tuple(rungs), seeds, pace * (virtual + min(FINALISTS, len(plans)) * (seeds - 1) * end))


def carry_out(
    race: Race,
    entrants: Sequence[Entrant],
    budget: PlanBudget,
    pool: ProcessPool,
    tell: Tell,
    is_over: Callable[[], bool],
) -> list[Entrant]:
    """Run or resume the race; return the plans, the best first.

    A plan whose run fails is out. `is_over` is called after every event; once it returns true, the race stops where it
    can be resumed, with a `KeyboardInterrupt`.
    """
    names = list(map(seed_folder, range(race.seeds)))
    for entrant in entrants:
        for seed, name in enumerate(names):
            require_same(entrant.folder / name, _racing(entrant.plan, seed), goes_on=True)
    for entrant in entrants:
        make_folder(entrant.folder)
        write_atomically(entrant.folder / "experiment.json", to_json({"runs": names}))  # which `atoll report` reads
    track, going, out = _Track(budget, pool, is_over), list(entrants), list[Entrant]()
    for (until, _), after in zip(race.rungs, (*race.rungs[1:], None), strict=True):
        tell(f"{counted(len(going), 'plan')} until {until:,.0f} s of virtual time")
        failed, sound = track.climb(going, until)
        if not sound:
            raise RunError(f"every plan failed, for example {entrants[0].name}: {entrants[0].problem}")
        left = FINALISTS if after is None else after[1]
        for entrant in sound[left:]:
            entrant.left_at, entrant.level = reached(entrant, until), level_of(entrant, 0, until, budget)
        going, out = sound[:left], [*sound[left:], *out, *failed]
    allowed = math.inf
    for entrant in going:
        tell(f"{entrant.name}, {race.seeds} seeds" if race.seeds > 1 else entrant.name)
        track.finish(entrant, race.seeds, until, allowed)
        if budget.target is not None and not entrant.problem:
            allowed = min(allowed, GIVES_UP * sum(entrant.costs))
    ranked = [*sorted(going, key=lambda entrant: cost_of(entrant, budget)), *out]
    return sorted(ranked, key=lambda entrant: bool(entrant.problem))


@dataclass(frozen=True, eq=False)
class _Track:
    """Lets the plans of a race train."""

    budget: PlanBudget
    pool: ProcessPool
    is_over: Callable[[], bool]

    def climb(self, going: Sequence[Entrant], until: float) -> tuple[list[Entrant], list[Entrant]]:
        """Let all train until a virtual time; return those that failed, and the others, the best first."""
        for entrant in going:
            self.train(entrant, 0, min(until, latest(going, until, self.budget)))
        sound = sorted((each for each in going if not each.problem), key=lambda each: rank(each, until, self.budget))
        return [each for each in going if each.problem], sound

    def finish(self, entrant: Entrant, seeds: int, until: float, allowed: float) -> None:
        """Let a finalist train with every seed, until its total seconds to the target exceed those allowed."""
        for seed in range(seeds):
            left = until if math.isinf(allowed) else allowed - sum(entrant.costs)
            self.train(entrant, seed, min(until, left))
            settle(entrant, seed, until, self.budget)
            if entrant.problem or sum(entrant.costs) > allowed:
                break
        missing = seeds - len(entrant.costs)
        entrant.costs += [math.inf] * (0 if entrant.problem else missing)
        entrant.is_behind = math.isfinite(allowed) and math.isinf(sum(entrant.costs))
        whole = 1 if entrant.problem or entrant.is_behind else seeds  # seeds that trained as long as they should
        entrant.level = float(np.mean([level_of(entrant, seed, until, self.budget) for seed in range(whole)]))

    def train(self, entrant: Entrant, seed: int, until: float) -> None:
        """Let a plan train until a virtual time, or until it meets the target; record a failure."""
        place = entrant.folder / seed_folder(seed)
        self._stop_if_over()
        if entrant.problem or RunFolder(place).is_finished or is_there(rows_of(entrant, seed), until, self.budget):
            return
        experiment = self.pool.make(_racing(entrant.plan, seed))
        seconds = [event.seconds for event in experiment.method.schedule.events]
        wanted = int(np.searchsorted(seconds, until, side="right"))
        try:
            with closing(run_events(experiment, place, resume=True)) as steps:
                for progress in steps:
                    if self._may_stop(progress, experiment.method.schedule, wanted):
                        break
        except RunError as error:
            entrant.problem = str(error)
        self._stop_if_over()

    def _may_stop(self, progress: RunProgress, schedule: Schedule, wanted: int) -> bool:
        """Return whether a run may stop; one that has met the target never continues, so nothing is lost."""
        value = (progress.row or {}).get(self.budget.column_of(progress.row or ()))
        if self.budget.target is not None and value is not None and meets(value, self.budget.target, self.budget):
            return True
        return progress.is_settled and (self.is_over() or _is_near(schedule, progress.events_done, wanted))

    def _stop_if_over(self) -> None:
        if self.is_over():
            raise KeyboardInterrupt


def _racing(plan: Scored, seed: int) -> Settings:
    """Return a plan's settings with few evaluations, and its own seed or a later one."""
    settings = plan.candidate.settings
    every = with_rounds(settings, plan.score.rounds / PROBES).rounds
    samples = min(settings.run.evaluate_samples or SAMPLES, SAMPLES)
    rare = settings.but("run", evaluate_every=every, evaluate_samples=samples, stop_at=None)
    return rare.model_copy(update={"seed": settings.seed + seed})


def _is_near(schedule: Schedule, done: int, wanted: int) -> bool:
    """Return whether a run is as close to this many events as possible: some train together."""
    return done < len(schedule) and (done >= wanted or done + len(schedule.ready(done)) - wanted > wanted - done)


def seconds_an_update(plan: Scored, pool: ProcessPool) -> float:
    """Return the seconds of one local training on this machine, measured on a plan's first one."""
    experiment = pool.make(plan.candidate.settings)
    units = Units(experiment.method.schedule.occupied, whole=experiment.execution.choice.whole)
    cohort = units.first(experiment.training.initial_models()[0])
    with closing(experiment.execution.make_executor()) as executor:
        time_unit(executor, cohort)  # the first also imports, or forks
        return time_unit(executor, cohort) / max(1, len(cohort.clients))
