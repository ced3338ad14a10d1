"""From plans to those worth a race: each made to fill the budget, scored, and dropped if another does all better."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoll.experiment.experiment import Experiment
from atoll.methods.papers.hierarchical import cut_by_empty
from atoll.planner.budget import PlanBudget
from atoll.planner.candidates import Candidate, Dropped, with_rounds
from atoll.planner.plan_scores import PlanScore, score
from atoll.planner.pool import ProcessPool
from atoll.settings.choices import method_needs
from atoll.settings.sections import Settings
from atoll.support.errors import InputError, SettingWarning

MUCH_LATER = 1.05  # so many times a plan's predicted seconds to a target are too many to race it
ALIKE = 0.02  # two numbers this close, relative to the larger, are alike
_GROWTH = 1.1  # more rounds than seem to be needed, so that the budget ends the run
_TRIES = 12  # of making a schedule long enough
_FREE = ("clustering.", "faults.deadline_seconds", "network.")


@dataclass(frozen=True)
class Scored:
    """A plan whose settings end where the budget does, and what its schedule says of it."""

    candidate: Candidate
    score: PlanScore

    @property
    def name(self) -> str:
        """What tells the plan from others."""
        return self.candidate.name


def seconds_of(settings: Settings, budget: PlanBudget, pool: ProcessPool) -> float:
    """Return the virtual time that there is: the budget's, the settings', or what their own rounds take.

    It is infinite where bytes alone end a run.
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
    """Yield each plan with its score, or why it is dropped: it cannot be, or is the same as one before it."""
    seen: dict[tuple[object, ...], str] = {}
    for candidate in candidates:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SettingWarning)  # of what one schedule takes: there are many
                experiment = fill(candidate.settings, seconds, size, pool)
            _require_whole(experiment)
            mark = _mark(experiment)
            if mark in seen:
                yield Dropped(candidate.name, candidate.values, f"the same as {seen[mark]}")
                continue
            seen[mark] = candidate.name
            found = Scored(replace(candidate, settings=experiment.settings), score(experiment))
        except InputError as error:
            yield Dropped(candidate.name, candidate.values, str(error), cannot_be=True)
            continue
        yield found


def fill(settings: Settings, seconds: float, size: float | None, pool: ProcessPool) -> Experiment:
    """Return the experiment with as many rounds as the budget takes, ended by `run.virtual_seconds`.

    Raises:
        InputError: settings that cannot be carried out, or of which no event fits the budget.
    """
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
            raise InputError("network: events take no time, so that a budget of time does not end them")
        more = seconds / end if math.isfinite(seconds) else float(size or 0) / float(sent[-1])
        settings = with_rounds(settings, settings.rounds * max(_GROWTH, _GROWTH * min(more, 1e3)) + 1)
    raise InputError(f"rounds = {settings.rounds}: still do not fill the budget")


def _with_seconds(settings: Settings, seconds: float) -> Settings:
    run = settings.run.model_copy(update={"virtual_seconds": seconds if math.isfinite(seconds) else None})
    return settings.model_copy(update={"run": run})


def _cut_at(settings: Settings, events: Sequence[object], sent: np.ndarray, size: float) -> Settings:
    count = int(np.searchsorted(sent, size, side="right"))
    if not count:
        raise InputError(f"--bytes {size:g}: the first event sends {int(sent[0]):,}")
    return _with_seconds(settings, float(events[count - 1].seconds))  # type: ignore[attr-defined]


def _require_whole(experiment: Experiment) -> None:
    """Refuse plans whose aggregators without clients keep others from ever hearing of each other."""
    if not method_needs(experiment.settings, "phases") or experiment.method.schedule.has_server:
        return
    if any(cut_by_empty(phase.network, phase.clustering) for phase in experiment.plan.phases):
        raise InputError(
            "aggregators without clients cut the others into parts that never exchange models; a topology with more "
            "links would connect them"
        )


def _mark(experiment: Experiment) -> tuple[object, ...]:
    """Return what a plan's training comes from, so that two plans of one mark are the same."""
    settings = experiment.settings.model_dump(exclude={"clustering", "label", "panel", "rounds"})
    schedule = experiment.method.schedule
    return str(settings), experiment.clustering.labels.tobytes(), len(schedule), schedule.events[-1].seconds


def prune(plans: Sequence[Scored]) -> tuple[list[Scored], list[Dropped]]:
    """Return the plans that no other one makes needless, and those others.

    A plan is needless if one that differs in its clustering alone is predicted to reach a target much earlier, or to be
    as good and alike in all else; or if another one of the same pattern and method is nowhere clearly worse and
    somewhere clearly better: in merges, local steps, clients that take part, staleness, and how unlike all data its
    clusters are.
    """
    kept, dropped = _by_prediction(plans)
    for plan in list(kept):
        better = next((other for other in kept if _outdoes(other, plan)), None)
        if better is not None:  # which itself is kept, or dropped for one that is
            kept.remove(plan)
            dropped.append(
                Dropped(plan.name, plan.candidate.values, f"{better.name} has {_how(better.score, plan.score)}")
            )
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
            why = f"is, to {ALIKE:.0%}, as {first.name} by all that its schedule says"
            dropped.append(Dropped(plan.name, plan.candidate.values, why))
        elif later <= MUCH_LATER:
            kept.append(plan)
        else:
            why = f"is predicted to take {later:.2g} times as long to a target as {first.name}"
            dropped.append(Dropped(plan.name, plan.candidate.values, why))
    return kept, dropped


def _is_twin(one: PlanScore, other: PlanScore) -> bool:
    """Return whether nothing tells two plans apart but their clustering, so that a race would only say it twice."""
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
    better = any(_clearly_less(theirs, mine) for mine, theirs in pairs)
    return better and not worse


def _fixed(values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what must be equal for schedules to compare plans: all but who is where, and how long."""
    return [(name, text) for name, text in values.items() if not name.startswith(_FREE)]


def _qualities(one: PlanScore, other: PlanScore) -> Iterator[tuple[str, float, float]]:
    """Yield what schedules are compared by, more being better, in the words of a sentence."""
    words: Sequence[tuple[str, Callable[[PlanScore], float]]] = (
        ("more merges", lambda score: score.merges),
        ("more local steps", lambda score: score.steps),
        ("more clients", lambda score: score.clients),
        ("less staleness", lambda score: 1 / (1 + score.mean_staleness)),
        ("better mixed clusters", lambda score: 2.0 - score.emd),
    )
    for name, value in words:
        yield name, value(one), value(other)


def _clearly_less(one: float, other: float) -> bool:
    return one < other - ALIKE * max(abs(one), abs(other))


def _how(better: PlanScore, worse: PlanScore) -> str:
    named = [name for name, mine, theirs in _qualities(better, worse) if _clearly_less(theirs, mine)]
    return f"{' and '.join(named)}, and nothing clearly worse"
