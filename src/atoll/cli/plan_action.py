"""`atoll plan` once its options are read."""

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atoll.cli.common import end_interrupted, err, experiment_words, option_words, out, print_json
from atoll.cli.interrupts import Interrupts
from atoll.cli.run_progress import LOG_SECONDS
from atoll.experiment.experiment import Experiment
from atoll.planner import plan_folder as folders
from atoll.planner import plan_table as table
from atoll.planner.budget import PlanBudget
from atoll.planner.entrants import Entrant
from atoll.planner.measured_runs import apply, predicted_seconds, read_measurements
from atoll.planner.plan_page import render
from atoll.planner.planning import Field, sort_out
from atoll.planner.race import Race, carry_out, lay_out, seconds_an_update
from atoll.settings.choices import method_needs
from atoll.settings.validation import Settings
from atoll.support.errors import RunError
from atoll.support.files import write_atomically
from atoll.support.lock import claimed
from atoll.support.units import format_seconds
from atoll.support.wording import counted, slug
from atoll.sweep.axes import parse_axes

MOST_REASONS = 3  # why plans cannot be carried out, shown without --verbose


@dataclass(frozen=True)
class PlanOptions:
    """The options of the command."""

    experiment: str
    over: list[str]
    changes: list[str]
    scale: str | None
    only: str | None
    budget: PlanBudget
    seeds: int
    source: Path | None
    folder: Path
    as_json: bool
    quiet: bool
    verbose: bool

    @property
    def note(self) -> dict[str, Any]:
        """What the folder's note says."""
        given = {"experiment": self.experiment, "scale": self.scale, "set": self.changes, "only": self.only}
        budget = {"seconds": self.budget.seconds, "bytes": self.budget.size, "target": self.budget.target}
        source = self.source and str(self.source)
        return {**given, "over": self.over, **budget, "metric": self.budget.metric, "from": source, "seeds": self.seeds}

    def command(self) -> str:
        """Return the command that makes the plan."""
        words = ["atoll", "plan", *experiment_words(self.experiment, self.scale, self.changes, self.only)]
        budget = self.budget
        words += option_words(("--over", self.over), ("--seconds", budget.seconds), ("--bytes", budget.size))
        words += option_words(("--target", budget.target), ("--metric", budget.metric), ("--from", self.source))
        words += option_words(("--seeds", self.seeds), ("--out", self.folder), ("--json", self.as_json))
        return shlex.join(words)

    def say(self, text: str) -> None:
        """Report progress."""
        if not self.quiet and not self.as_json:
            err.print(text)


def plan_it(asked: PlanOptions, experiment: Experiment, race: bool, resume: bool) -> None:
    """Score plans by their schedules, race the best, and write the chosen one."""
    if not race:
        _show_scores(asked, _scored(asked, experiment.settings))
        return
    folders.require_folder(asked.folder, asked.note, resume)
    with claimed(asked.folder):
        field = _scored(asked, experiment.settings)
        folders.write_note(asked.folder, asked.note)
        entrants = [Entrant(plan, asked.folder / folders.RACE / slug(plan.name)) for plan in field.plans]
        laid_out = lay_out(field.plans, asked.seeds)
        asked.say(_forecast(field, laid_out))
        _finish(asked, _race(asked, laid_out, entrants, field), field)


def _scored(asked: PlanOptions, settings: Settings) -> Field:
    """Return the plans that are worth a race, and report the others."""
    if asked.source is not None:
        settings = _measured(asked, asked.source, settings)
    begun = told = time.monotonic()

    def show(done: int, of: int) -> None:
        nonlocal told
        if time.monotonic() - told >= LOG_SECONDS:
            told = time.monotonic()
            asked.say(f"{done} of {of} plans scored")

    field = sort_out(settings, parse_axes(asked.over), asked.budget, show)
    asked.say(
        f"plans scored by their schedules: {len(field.plans) + len(field.dropped)}, in "
        f"{format_seconds(time.monotonic() - begun)}; worth a race: {len(field.plans)}"
    )
    for why, count in Counter(each.why for each in field.dropped if each.cannot_be).most_common(MOST_REASONS):
        asked.say(f"{count} cannot be carried out: {why}")
    if asked.verbose:
        for dropped in field.dropped:
            asked.say(f"dropped: {dropped.name}: {dropped.why}")
    return field


def _measured(asked: PlanOptions, source: Path, settings: Settings) -> Settings:
    """Return settings with what a run on a fleet measured, and report how well they predict that run."""
    measured = read_measurements(source)
    predicted = predicted_seconds(measured, asked.folder)
    asked.say(
        f"{source}: its {counted(measured.events, 'event')} took {format_seconds(measured.seconds)}; predicted from "
        f"its clients' measurements: {format_seconds(predicted)} ({predicted / measured.seconds - 1:+.0%}); "
        f"{measured.lost:.1%} of client updates were lost"
    )
    return apply(measured, settings, asked.folder)


def _forecast(field: Field, race: Race) -> str:
    """Return what the race will take, in words."""
    rungs = ", ".join(f"{plans} until {format_seconds(until)}" for until, plans in race.rungs)
    seeds = f", the finalists with {race.seeds} seeds" if race.seeds > 1 else ""
    took = seconds_an_update(field.plans[0], field.pool) * race.updates
    settings = field.plans[0].candidate.settings
    return (
        f"the race: {rungs} of virtual time{seeds}; at most about {format_seconds(max(took, 1.0))} of training here, "
        "not counting evaluation\n"
        f"it trains {settings.model.name} on {settings.data.dataset}: if your clients hold other data, seconds "
        "and bytes still apply, accuracies do not"
    )


def _race(asked: PlanOptions, race: Race, entrants: list[Entrant], field: Field) -> list[Entrant]:
    with Interrupts() as interrupts:
        interrupts.is_patient = True
        try:
            return carry_out(race, entrants, asked.budget, field.pool, asked.say, lambda: interrupts.number is not None)
        except KeyboardInterrupt:
            end_interrupted(f"{asked.command()} --resume", interrupts.exit_code)


def _finish(asked: PlanOptions, ranked: Sequence[Entrant], field: Field) -> None:
    """Write and print the result."""
    budget, first = asked.budget, ranked[0]
    reason, rows = table.why(ranked, budget), table.as_dicts(ranked, budget)
    found: dict[str, Any] = {"plans": rows, "dropped": [vars(each) for each in field.dropped], "why": reason}
    missed = budget.target is not None and not any(each.sizes for each in ranked)
    if not missed:
        folders.write_chosen(asked.folder, first.plan.candidate.settings, first.name, reason)
    folders.write_note(asked.folder, asked.note, **found)
    write_atomically(asked.folder / folders.PAGE, render(ranked, budget, field, asked.command()).encode())
    if asked.as_json:
        print_json({**found, "folder": str(asked.folder)})
    else:
        out.print(table.table_of(ranked, budget).as_rich())
    if missed:
        far = "; ".join(f"{each.name} {table.level_in_words(each.level, budget)}" for each in ranked[:5])
        raise RunError(
            f"--target {budget.target:g}: no plan reaches it within the budget; the closest: {far}; curves: "
            f"{asked.folder / folders.PAGE}"
        )
    if not asked.as_json:
        out.print(reason)
        if asked.verbose and (bound := _bound_of(field.pool.make(first.plan.candidate.settings))):
            out.print(bound)
        out.print(f"Run it: {shlex.join(['atoll', 'run', str(asked.folder / folders.CHOSEN)])}")
        out.print(f"Page: {asked.folder / folders.PAGE}")


def _bound_of(experiment: Experiment) -> str | None:
    """Return FedUC's bound for a plan, in words; the choice does not use it."""
    if not method_needs(experiment.settings, "network"):
        return None
    plan = experiment.plan.summary
    return (
        f"FedUC's bound, not used for the choice: {plan.bound:.3g} = kappa {plan.kappa:.3g} x {plan.initial_gap:.4g} + "
        f"delta {plan.delta:.3g}, with mu {plan.mu:g}, L {plan.smoothness:g}, staleness of at most {plan.tau_max:.3g}"
    )


def _show_scores(asked: PlanOptions, field: Field) -> None:
    if asked.as_json:
        plans = [{"plan": p.name, "values": dict(p.candidate.values), "schedule": asdict(p.score)} for p in field.plans]
        print_json({"plans": plans, "dropped": [vars(each) for each in field.dropped]})
        return
    out.print(table.score_table(field.plans).as_rich())
