"""The result of a sweep: each setting's metric over seeds, with the best setting marked."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atoll.report.tables.formats import DASH, TextTable
from atoll.report.tables.spread_tables import as_columns
from atoll.runs.columns import is_share
from atoll.support.estimates import Estimate, estimate, estimate_share
from atoll.support.units import byte_unit, format_number, time_unit
from atoll.sweep.axes import short_names
from atoll.sweep.goal import Goal
from atoll.sweep.sweep_plan import Member


@dataclass(frozen=True)
class Line:
    """One setting of a sweep.

    Attributes:
        run: the experiment's run; empty if it has only one.
        values: the settings swept over, without the seed.
        seeds: how many runs are planned.
        finished: how many of them count.
        last: over seeds, the metric at the last probe or the cost of the target; None without a finished run, or if a
            seed missed the target, since averaging only successful seeds would be biased.
        best: over seeds, the metric at each run's best probe; for a cost, the same as `last`.
        missed: how many of the finished runs missed the target.
        is_best_last: whether all runs are finished and no other such setting has a better mean of the last value.
        is_best: the same for the best value.
    """

    run: str
    values: Mapping[str, Any]
    seeds: int
    finished: int
    last: Estimate | None
    best: Estimate | None
    missed: int = 0
    is_best_last: bool = False
    is_best: bool = False


def sum_up(out: Path, members: Sequence[Member], goal: Goal) -> list[Line]:
    """Return one line per setting, in the order of the sweep, from what its finished runs recorded."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.setting, []).append(member)
    lines = list[Line]()
    for group in groups.values():
        found = [pair for member in group if (pair := goal.read(out / member.name)) is not None]
        missed = sum(math.isinf(last) for last, _ in found)
        sum_all = estimate_share if is_share(goal.metric) else estimate
        last, best = (sum_all([pair[i] for pair in found]) if found and not missed else None for i in (0, 1))
        values = {name: value for name, value in group[0].values.items() if name != "seed"}
        lines.append(Line(group[0].run, values, len(group), len(found), last, best, missed))
    return _mark(lines, goal)


def note_of(goal: Goal) -> str:
    """Return the note below the table."""
    by = "Wilson's score with Student's t, which stays within 0 to 100 %" if is_share(goal.metric) else "Student's t"
    over = f"ean ± sample standard deviation over seeds; 95 % CI: of the mean{{}}, by {by}. Only finished runs count."
    if goal.target is None:
        return f"Last: at the last evaluation. Best: at each run's best one. M{over.format(' of the last value')}"
    return f"At the first evaluation that meets the target: m{over.format('')} No mean if a seed missed it."


def table_of(lines: Sequence[Line], goal: Goal) -> TextTable:
    """Return the lines as a table of text."""
    names = list(lines[0].values)
    has_runs = any(line.run for line in lines)
    header = [*(["Run"] if has_runs else []), *short_names(names), "Seeds"]
    if goal.target is None:
        header += [f"Last {goal.metric}", "95 % CI", f"Best {goal.metric}", "Best by"]
    else:
        header += [goal.title, "95 % CI", "Best"]
    rows = [
        [
            *([line.run] if has_runs else []),
            *(show_value(value) for value in line.values.values()),
            f"{line.finished} of {line.seeds}",
            *_values(line, goal),
        ]
        for line in lines
    ]
    return TextTable([header, *rows], has_runs + len(names), note_of(goal))


def as_dicts(lines: Sequence[Line], goal: Goal) -> list[dict[str, Any]]:
    """Return the table as plain values; unknown ones are None. For a cost, includes target and missed seeds."""
    return [
        {
            "run": line.run,
            **{k: each if isinstance(each, int | float | str) else json.dumps(each) for k, each in line.values.items()},
            "seeds": line.seeds,
            "finished": line.finished,
            "metric": goal.metric,
            **({} if goal.target is None else {"target": goal.target, "missed": line.missed}),
            **as_columns("last", line.last),
            **as_columns("best", line.best),
            "is_best_last": line.is_best_last,
            "is_best": line.is_best,
        }
        for line in lines
    ]


def show_value(value: Any) -> str:
    """Return a setting's value as text: a string unquoted, anything else as in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {json.dumps(each)}" for key, each in value.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value)


def show(value: float, goal: Goal) -> str:
    """Return one value of the metric as text."""
    factor, unit = _unit(goal, value)
    return f"{_number(factor * value, goal)} {unit}".rstrip()


def _mark(lines: Sequence[Line], goal: Goal) -> list[Line]:
    """Return the lines, with the best of those marked whose runs are all finished: failed seeds are no merit."""
    pick, whole = max if goal.rises else min, [line for line in lines if line.finished == line.seeds]
    last = pick((line.last.mean for line in whole if line.last is not None), default=None)
    best = pick((line.best.mean for line in whole if line.best is not None), default=None)
    return [
        replace(
            line,
            is_best_last=line.last is not None and line.last.mean == last,
            is_best=line.best is not None and line.best.mean == best,
        )
        if line.finished == line.seeds
        else line
        for line in lines
    ]


def _values(line: Line, goal: Goal) -> list[str]:
    """Return the cells that summarise a line's seeds."""
    if goal.target is not None:
        missed = f"missed by {line.missed} of {line.finished}" if line.missed else _spread(line.last, goal)
        return [missed, _interval(line.last, goal), "best" if line.is_best_last else ""]
    marks = [*(["last"] if line.is_best_last else []), *(["best"] if line.is_best else [])]
    return [_spread(line.last, goal), _interval(line.last, goal), _spread(line.best, goal), ", ".join(marks)]


def _spread(found: Estimate | None, goal: Goal) -> str:
    if found is None:
        return DASH
    if found.std is None:
        return show(found.mean, goal)
    factor, unit = _unit(goal, found.mean)
    return f"{_number(factor * found.mean, goal)} ± {_number(factor * found.std, goal, 2)} {unit}".rstrip()


def _interval(found: Estimate | None, goal: Goal) -> str:
    if found is None or found.low is None or found.high is None:
        return DASH
    factor, unit = _unit(goal, found.mean)
    return f"{_number(factor * found.low, goal)} to {_number(factor * found.high, goal)} {unit}".rstrip()


def _unit(goal: Goal, mean: float) -> tuple[float, str]:
    """Return the factor and unit in which values of about this size are shown."""
    if is_share(goal.metric):
        return 100.0, "%"
    if goal.metric.endswith("_time"):
        unit = time_unit(mean)
        return 1 / unit.seconds, unit.symbol
    length, symbol = byte_unit(mean) if goal.metric.startswith("bytes_") else (1.0, "")
    return 1 / length, symbol


def _number(value: float, goal: Goal, digits: int = 4) -> str:
    """Return a number with this many digits; a percentage with two after the point."""
    return f"{value:.2f}" if is_share(goal.metric) else format_number(value, digits)
