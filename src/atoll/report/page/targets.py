"""The page's tables of targets: the cost of reaching an accuracy, and the speed-up over the first line."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atoll.report.page.markup import Body, Cell, paragraph, table
from atoll.report.page.results import UnitOf, count, seconds, size, write_mean
from atoll.report.reading.groups import Group, Panel
from atoll.report.tables.formats import DASH
from atoll.report.tables.run_tables import FIRST, STABLE, clock_of, first_met, lead_of, rounds_to_target
from atoll.report.tables.spread import choose_targets

NOTE = (
    "Costs are those at {}, without interpolation; × is the speed-up over the baseline. There is neither if a seed "
    "does not reach the target."
)
COSTS: Sequence[tuple[str, str, UnitOf]] = (
    ("Rounds", "round", count),
    ("Client updates", "client_updates", count),
    ("Bytes sent", "bytes", size),
    ("Virtual time", "virtual_time", seconds),
    ("Wall time", "wall_time", seconds),
)
NONE = "No target accuracy distinguishes these runs: they have recorded none, or do not differ."


def targets_table(
    panels: Sequence[Panel], targets: Sequence[float] | None, stable: bool = False, baseline: str = ""
) -> str:
    """Return rounds, client updates, bytes and seconds to each target accuracy, a table for each panel.

    `targets` and `stable` are as in `rounds_to_target`, whose default targets are chosen for each panel. Speed-ups are
    over the setting labelled `baseline`, or else over a panel's first.
    """
    by_panel = [(panel, _choose(panel, targets, stable)) for panel in panels]
    tables = [_table(panel, chosen, stable, baseline) for panel, chosen in by_panel if chosen]
    note = NOTE.format(STABLE if stable else FIRST)
    return "".join(tables) + paragraph(note, "note") if tables else paragraph(NONE)


def _choose(panel: Panel, targets: Sequence[float] | None, stable: bool) -> list[float]:
    known = any(np.isfinite(run.rows["test_accuracy"]).any() for run in panel.runs)
    if known and targets is None and any(len(group.finished) > 1 for group in panel.groups):
        return choose_targets(panel.groups, stable)
    rows = rounds_to_target(panel.runs, targets, stable=stable) if known else []
    return [reached.target for reached in rows[0].targets] if rows else []


def _costs(panel: Panel) -> list[tuple[str, str, UnitOf]]:
    """Return the kinds of cost (title, column, unit), the one that compares a panel's runs best first."""
    lead = lead_of(panel.runs)
    return sorted(COSTS, key=lambda cost: cost[1] != lead)


def _table(panel: Panel, targets: Sequence[float], stable: bool, baseline: str) -> str:
    title = "Cost of reaching a test accuracy" + (f": {panel.title}" if panel.title else "")
    bodies = [Body(f"To {100 * target:g} %", _lines(panel, target, stable, baseline)) for target in targets]
    return table(title, ["Run", *(name for name, _, _ in _costs(panel))], bodies)


def _lines(panel: Panel, target: float, stable: bool, baseline: str) -> list[list[Cell]]:
    groups, against = panel.groups, panel.baseline(baseline)
    lines = [[Cell(group.label)] for group in groups]
    for _, column, unit_of in _costs(panel):
        base = _reached(against, target, stable, column)
        for line, group in zip(lines, groups, strict=True):
            values = _reached(group, target, stable, column)
            clock, other = (clock_of(each.runs) if column == "virtual_time" else "" for each in (group, against))
            cell = replace(_cell(values, unit_of), clock=clock)
            line.append(cell if group is against or clock != other else _with_speed_up(cell, values, base))
    return lines


def _reached(group: Group, target: float, stable: bool, column: str) -> list[float | None]:
    """Return the cost at which each seed meets the target; None if it does not, or the cost is unknown."""
    costs: list[float | None] = []
    for run in group.counted:
        probe = first_met(run.rows["test_accuracy"], target, stable=stable)
        cost = np.nan if probe is None else float((run.bytes_sent if column == "bytes" else run.rows[column])[probe])
        costs.append(cost if np.isfinite(cost) else None)
    return costs


def _cell(values: Sequence[float | None], unit_of: UnitOf) -> Cell:
    known = [value for value in values if value is not None]
    if not known:
        return Cell(DASH, style="missing")
    if len(known) < len(values):
        return Cell(DASH, f"{len(known)} of {len(values)} seeds")
    return Cell(write_mean(known, unit_of), value=float(np.mean(known)))


def _with_speed_up(cell: Cell, values: Sequence[float | None], base: Sequence[float | None]) -> Cell:
    """Add the speed-up over the baseline, if all seeds of both reach the target."""
    own, first = [v for v in values if v is not None], [v for v in base if v is not None]
    if len(own) < len(values) or len(first) < len(base) or not sum(own):
        return cell
    ratio = round(float(np.mean(first) / np.mean(own)), 2)
    style = "faster" if ratio > 1 else "slower" if ratio < 1 else ""
    return replace(cell, note=f"{ratio:.2f}×" if ratio < 10 else f"{ratio:,.0f}×", style=style)
