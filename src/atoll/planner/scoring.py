"""From plans to those worth racing: each fills the budget, is scored, and is dropped if another is better in all."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoll.experiment.experiment import Experiment
from atoll.methods.papers.hierarchical import cut_by_empty
from atoll.planner.budget import PlanBudget
from atoll.planner.candidates import Candidate, Dropped, with_rounds
from atoll.planner.plan_scores import PlanScore, score
from atoll.planner.pool import ProcessPool
from atoll.schedules.events import Event
from atoll.settings.choices import method_needs
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, SettingWarning

MUCH_LATER = 1.05  # a plan is dropped if its predicted seconds to a target exceed the best ones by this factor
ALIKE = 0.02  # relative difference below which two numbers count as equal
_GROWTH = 1.1  # factor on the rounds that seem necessary, so that the budget ends the run
_TRIES = 12  # to make a schedule that is long enough
_FREE = ("clustering.", "faults.deadline_seconds", "network.")


@dataclass(frozen=True)
class Scored:
    """A plan whose settings end with the budget, and its schedule's score."""

    candidate: Candidate
    score: PlanScore

    @property
    def name(self) -> str:
        """The plan's unique name."""
        return self.candidate.name


def seconds_of(settings: Settings, budget: PlanBudget, pool: ProcessPool) -> float:
    """Return the virtual time of a run: the budget's, the settings', or that of their own rounds.

    It is infinite if bytes alone end a run.
    """
    given = budget.seconds if budget.seconds is not None else settings.run.virtual_seconds
    if given is not None:
        return given
    if budget.size is not None:
        return math.inf
    return pool.make(settings).method.schedule.events[-1].seconds


def score_all(
    candidates: Iterable[Candidate], seconds: float, size: float | None, pool: ProcessPool
) -> Iterator[Scored | Dropped]:
    """Yield each plan with its score, or as dropped: it is not valid, or the same as an earlier one."""
    seen: dict[tuple[object, ...], str] = {}
    for candidate in candidates:
        try:
            with warnings.catch_warnings(action="ignore", category=SettingWarning):  # about the size of a schedule
                experiment = fill(candidate.settings, seconds, size, pool)
            _require_whole(experiment)
            if (first := seen.setdefault(_mark(experiment), candidate.name)) != candidate.name:
                yield Dropped(candidate.name, candidate.values, f"the same as {first}")
                continue
            found = Scored(replace(candidate, settings=experiment.settings), score(experiment))
        except InputError as error:
            yield Dropped(candidate.name, candidate.values, str(error), cannot_be=True)
            continue
        yield found


def fill(settings: Settings, seconds: float, size: float | None, pool: ProcessPool) -> Experiment:
    """Return the experiment with as many rounds as the budget allows, ended by `run.virtual_seconds`."""
    for _ in range(_TRIES):
        timed = _with_seconds(settings, seconds)
        experiment = pool.make(timed)
        schedule = experiment.method.schedule
        pool.keep(experiment)
        sent = np.cumsum([sum(experiment.traffic.bytes_of([event])) for event in schedule.events])
        if size is not None and sent[-1] > size:
            return pool.make(_cut_at(timed, schedule.events, sent, size))
        if schedule.rounds < settings.rounds:
            return experiment
        end = schedule.events[-1].seconds
        if not end > 0:
            raise InputError("network: events take no time, so a time budget does not end a run")
        if not math.isfinite(seconds) and not sent[-1]:
            raise InputError(f"--bytes {size:g}: nothing is ever sent, so bytes do not end a run; add --seconds")
        more = seconds / end if math.isfinite(seconds) else float(size or 0) / float(sent[-1])
        settings = with_rounds(settings, settings.rounds * max(_GROWTH, _GROWTH * min(more, 1e3)) + 1)
    raise InputError(f"rounds = {settings.rounds}: still does not fill the budget")


def _with_seconds(settings: Settings, seconds: float) -> Settings:
    return settings.but("run", virtual_seconds=seconds if math.isfinite(seconds) else None)


def _cut_at(settings: Settings, events: Sequence[Event], sent: np.ndarray, size: float) -> Settings:
    if not (count := int(np.searchsorted(sent, size, side="right"))):
        raise InputError(f"--bytes {size:g}: the first event sends {int(sent[0]):,}")
    seconds = [event.seconds for event in events]  # of those that end together, all stay in or none
    within = int(np.searchsorted(seconds, seconds[count]))
    if not within:
        raise InputError(f"--bytes {size:g}: the events at {seconds[0]:g} s send more")
    return _with_seconds(settings, seconds[within - 1])


def _require_whole(experiment: Experiment) -> None:
    """Refuse plans whose aggregators without clients disconnect the others."""
    if not method_needs(experiment.settings, "phases") or experiment.method.schedule.has_server:
        return
    if any(cut_by_empty(phase.network, phase.clustering) for phase in experiment.plan.phases):
        raise InputError(
            "aggregators without clients cut the others into parts that never exchange models; choose a topology with "
            "more links"
        )


def _mark(experiment: Experiment) -> tuple[object, ...]:
    """Return a key of all that a plan's training depends on: plans with equal keys are the same."""
    settings = experiment.settings.model_dump(exclude={"clustering", "label", "panel", "rounds"})
    del settings["faults"]["deadline_seconds"]  # it acts by the events alone
    times = np.array([(event.seconds, event.late) for event in experiment.method.schedule.events])
    return str(settings), experiment.clustering.labels.tobytes(), times.tobytes()


def prune(plans: Sequence[Scored]) -> tuple[list[Scored], list[Dropped]]:
    """Return the plans that no other plan makes redundant, and the rest.

    A plan is redundant if one that differs only in its clustering is predicted to reach a target much earlier, or is
    equal in every respect; or if another one of the same pattern and method is nowhere clearly worse and somewhere
    clearly better: in merges, local steps, participating clients, staleness, and how well its clusters are mixed.
    """
    kept, dropped = _by_prediction(plans)
    for plan in list(kept):
        better = next((other for other in kept if _outdoes(other, plan)), None)
        if better is not None:  # it is itself kept, or dropped for one that is
            kept.remove(plan)
            qualities = _qualities(better.score, plan.score)
            named = " and ".join(name for name, mine, theirs in qualities if _clearly_less(theirs, mine))
            why = f"{better.name} has {named}, and nothing clearly worse"
            dropped.append(Dropped(plan.name, plan.candidate.values, why))
    return kept, dropped


def _by_prediction(plans: Sequence[Scored]) -> tuple[list[Scored], list[Dropped]]:
    best: dict[tuple[tuple[str, str], ...], Scored] = {}
    for plan in plans:
        if plan.score.predicted is not None:
            known = best.setdefault(_but_clustering(plan), plan)
            best[_but_clustering(plan)] = min(known, plan, key=lambda each: each.score.predicted or math.inf)
    kept, dropped = list[Scored](), list[Dropped]()
    for plan in plans:
        first = best.get(_but_clustering(plan), plan)
        later = (plan.score.predicted or 1.0) / (first.score.predicted or 1.0)
        if plan is not first and _is_twin(plan.score, first.score):
            why = f"has a schedule equal to that of {first.name} within {ALIKE:.0%}"
        elif later > MUCH_LATER:
            why = f"is predicted to take {later:.2g} times as long to a target as {first.name}"
        else:
            kept.append(plan)
            continue
        dropped.append(Dropped(plan.name, plan.candidate.values, why))
    return kept, dropped


def _is_twin(one: PlanScore, other: PlanScore) -> bool:
    """Return whether two plans differ only in their clustering, so that racing both would be pointless."""
    alike = ((mine, theirs) for _, mine, theirs in _qualities(one, other))
    pairs = [*alike, (one.predicted or math.nan, other.predicted or math.nan)]
    return all(abs(mine - theirs) <= ALIKE * max(abs(mine), abs(theirs)) for mine, theirs in pairs)


def _but_clustering(plan: Scored) -> tuple[tuple[str, str], ...]:
    return tuple((name, text) for name, text in plan.candidate.values.items() if not name.startswith("clustering."))


def _outdoes(one: Scored, other: Scored) -> bool:
    if _fixed(one.candidate.values) != _fixed(other.candidate.values):
        return False
    pairs = [(mine, theirs) for _, mine, theirs in _qualities(one.score, other.score)]
    worse = any(_clearly_less(mine, theirs) for mine, theirs in pairs)
    return not worse and any(_clearly_less(theirs, mine) for mine, theirs in pairs)


def _fixed(values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the values that plans must share to be compared: all but clusterings, deadlines and networks."""
    return [(name, text) for name, text in values.items() if not name.startswith(_FREE)]


def _qualities(one: PlanScore, other: PlanScore) -> Iterator[tuple[str, float, float]]:
    """Yield the qualities by which schedules are compared, as words and two values; more is better."""
    yield "more merges", one.merges, other.merges
    yield "more local steps", one.steps, other.steps
    yield "more clients", one.clients, other.clients
    yield "less staleness", 1 / (1 + one.mean_staleness), 1 / (1 + other.mean_staleness)
    yield "better mixed clusters", 2.0 - one.emd, 2.0 - other.emd


def _clearly_less(one: float, other: float) -> bool:
    return one < other - ALIKE * max(abs(one), abs(other))
