"""The ranked table of plans, and the sentences that explain the ranking."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from atoll.planner.budget import PlanBudget
from atoll.planner.entrants import Entrant, estimate_of
from atoll.planner.plan_scores import PlanScore
from atoll.planner.scoring import ALIKE, Scored
from atoll.report.tables.formats import DASH, TextTable
from atoll.runs.columns import is_share
from atoll.support.estimates import Estimate, estimate
from atoll.support.units import format_number, format_seconds

_FACTS = ("events", "waiting", "slowest client", "MB per hop", "staleness")


def level_in_words(level: float, budget: PlanBudget) -> str:
    """Return a value of the plans' metric as text."""
    if math.isnan(level):
        return DASH
    return f"{100 * level:.1f} %" if is_share(budget.column_of()) else format_number(level)


def table_of(ranked: Sequence[Entrant], budget: PlanBudget) -> TextTable:
    """Return the table of a race."""
    title = "at the end" if budget.target is None else f"to {level_in_words(budget.target, budget)}"
    plans = [entrant.plan for entrant in ranked]
    lines = [
        [str(place), in_words(entrant.name), judged(entrant, budget), *_facts(entrant.plan.score)]
        for place, entrant in enumerate(ranked, 1)
    ]
    slowest = "Slowest client: its name, and the seconds of a training with its upload."
    note = f"In brackets: 95 % interval over seeds. {slowest} {note_of(plans)}"
    return TextTable(_with_costs([["", "plan", title, *_FACTS], *lines], plans), 2, note)


def score_table(plans: Sequence[Scored]) -> TextTable:
    """Return the table of plans that were not raced, by descending merges per cluster."""
    header = ["plan", "merges", "steps", "EMD", "mean event", "waiting", "MB per hop", "staleness"]
    plans, lines = sorted(plans, key=lambda plan: -plan.score.merges), []
    for plan in plans:
        score, (_, waiting, _, megabytes, staleness) = plan.score, _facts(plan.score)
        event, numbers = format_seconds(score.mean_event), map(format_number, (score.merges, score.steps))
        lines.append([in_words(plan.name), *numbers, f"{score.emd:.2f}", event, waiting, megabytes, staleness])
    return TextTable(_with_costs([header, *lines], plans), 1, note_of(plans))


def in_words(name: str) -> str:
    """Return a plan's name as words."""
    return name.replace(",", ", ").replace("=", " ")


def judged(entrant: Entrant, budget: PlanBudget) -> str:
    """Return a plan's result in a few words."""
    if entrant.problem:
        return "failed"
    level = level_in_words(entrant.level, budget)
    if entrant.left_at is not None:
        return f"out at {format_seconds(entrant.left_at)}: {level}"
    found = estimate_of(entrant, budget)
    if entrant.is_behind:
        return f"behind: {level}"
    if found is None:
        missed = sum(math.isinf(cost) for cost in entrant.costs)
        return f"missed by {missed} of {len(entrant.costs)}: {level}"
    return _value(found.mean, budget) + _interval(found, budget)


def _value(value: float, budget: PlanBudget) -> str:
    return level_in_words(value, budget) if budget.target is None else format_seconds(value)


def _interval(found: Estimate, budget: PlanBudget) -> str:
    if found.low is None or found.high is None:
        return ""
    low = found.low if budget.target is None and not budget.falls else max(0.0, found.low)  # no seconds, no loss below
    return f" ({_value(low, budget)} to {_value(found.high, budget)})"


def _facts(score: PlanScore) -> list[str]:
    seconds = format_seconds(score.slowest_seconds)
    slowest = DASH if score.slowest_client is None else f"{score.slowest_client} ({seconds})"
    megabytes = " + ".join(format_number((hop.up + hop.down) / 1e6) for hop in score.hops)
    stale = f"{format_number(score.mean_staleness, 3)}, at most {score.max_staleness:,}"
    return [f"{score.events:,}", f"{score.waiting:.0%}", slowest, megabytes, stale]


def _with_costs(lines: Sequence[list[str]], plans: Sequence[Scored]) -> list[list[str]]:
    """Return a table's lines, the header first, with the plans' energy and price if any plan's are known."""
    scores = [plan.score for plan in plans]
    costs = {"kJ": [each.joules and each.joules / 1e3 for each in scores], "price": [each.price for each in scores]}
    known = {head: values for head, values in costs.items() if set(values) != {None}}
    columns = [[head, *(DASH if each is None else format_number(each) for each in known[head])] for head in known]
    return [[*line, *(column[row] for column in columns)] for row, line in enumerate(lines)]


def note_of(plans: Sequence[Scored]) -> str:
    """Return an explanation of the columns that all tables of plans have."""
    hops = "; ".join(dict.fromkeys(" + ".join(hop.name for hop in plan.score.hops) for plan in plans))
    tables = [plan.candidate.settings for plan in plans]
    alone = any(each.network.file is not None and each.method.get("pattern", "censyn") != "censyn" for each in tables)
    told = " Aggregators share links only in censyn; in other patterns each sends as if alone."
    return (
        "Waiting: share of the time in which clients neither compute nor send. "
        f"MB per hop: in both directions, {hops}. Staleness: mean, in merges." + (told if alone else "")
    )


def why(ranked: Sequence[Entrant], budget: PlanBudget) -> str:
    """Return a few sentences on why the first plan is first."""
    first, *others = ranked
    told = [f"{in_words(first.name)} is first{_lead(first, budget)}."]
    if (rival := next((other for other in others if not other.problem), None)) is None:
        return " ".join(told)
    told.append(_against(first, rival, budget))
    gains, pays = (list(_differences(*pair)) for pair in ((first, rival), (rival, first)))
    if gains:
        told.append(f"The first has {_joined(gains)}.")
    if pays:
        effect = "matters less here" if gains else "did not help"
        told.append(f"{in_words(rival.name)} has {_joined(pays)}, which {effect}.")
    return " ".join(told)


def _lead(entrant: Entrant, budget: PlanBudget) -> str:
    if (found := estimate_of(entrant, budget)) is None:
        return ""
    seeds = f" on average over {found.n} seeds" if found.n > 1 else ""
    if budget.target is None:
        return f": {level_in_words(found.mean, budget)} at the end{seeds}"
    return f": {level_in_words(budget.target, budget)} after {format_seconds(found.mean)}{seeds}"


def _against(first: Entrant, rival: Entrant, budget: PlanBudget) -> str:
    mine, theirs = estimate_of(first, budget), estimate_of(rival, budget)
    if rival.is_behind or mine is None or theirs is None:
        left, some = rival.left_at, " with some seeds" * any(map(math.isfinite, rival.costs))
        how = f"was out after {format_seconds(left)}" if left is not None else f"missed the target{some}"
        how = "was stopped when it could no longer be first" if rival.is_behind else how
        return f"{in_words(rival.name)}, the next, {how}."
    said = f"{in_words(rival.name)}, the next, has {_value(theirs.mean, budget)}."
    apart = estimate([one - other for one, other in zip(first.costs, rival.costs, strict=True)])
    if apart.low is None or apart.high is None:
        return f"{said} One seed proves nothing: --seeds 3 gives intervals."
    unsure = " Seed by seed, the difference is within chance: it is not certain which of the two is better."
    return said + (unsure if apart.low <= 0 <= apart.high else "")


def _differences(one: Entrant, other: Entrant) -> Iterator[str]:
    """Yield the respects in which one plan's schedule is clearly better than the other's."""
    mine, theirs = one.plan.score, other.plan.score
    for words, a, b, show in (
        ("more merges per cluster ({} to {})", mine.merges, theirs.merges, format_number),
        ("more local steps per client ({} to {})", mine.steps, theirs.steps, format_number),
        ("better mixed clusters (EMD {} to {})", -mine.emd, -theirs.emd, "{:.2f}".format),
        ("less staleness ({} to {} merges)", -mine.mean_staleness, -theirs.mean_staleness, format_number),
        ("less waiting ({} to {})", -mine.waiting, -theirs.waiting, "{:.0%}".format),
    ):
        values = show(abs(a)), show(abs(b))
        if a > b + max(ALIKE, 0.05) * max(abs(a), abs(b)) and values[0] != values[1]:
            yield words.format(*values)


def _joined(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def as_dicts(ranked: Sequence[Entrant], budget: PlanBudget) -> list[dict[str, Any]]:
    """Return the table as plain values; unknown ones are None."""
    return [_as_dict(place, entrant, budget) for place, entrant in enumerate(ranked, 1)]


def _as_dict(place: int, entrant: Entrant, budget: PlanBudget) -> dict[str, Any]:
    found = estimate_of(entrant, budget)
    return {
        "place": place,
        "plan": entrant.name,
        "values": dict(entrant.plan.candidate.values),
        "folder": str(entrant.folder),
        "mean": found.mean if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "seeds": [cost if math.isfinite(cost) else None for cost in entrant.costs],
        "bytes": entrant.sizes,
        "out_at": entrant.left_at,
        "level": None if math.isnan(entrant.level) else entrant.level,
        "problem": entrant.problem or None,
        "schedule": asdict(entrant.plan.score),
    }
