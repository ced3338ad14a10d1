"""The page's table of final results: means over seeds with their 95 % intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan

import numpy as np

from atoll.report.page.markup import NOTHING, Body, Cell, table
from atoll.report.reading.groups import Group, Panel
from atoll.report.reading.runs import Run
from atoll.report.tables.formats import DASH, show_p
from atoll.report.tables.run_tables import is_shown
from atoll.report.tables.spread import differences_in
from atoll.report.tables.spread_tables import show_difference
from atoll.runs.columns import column_title, is_share
from atoll.support.estimates import estimate
from atoll.support.units import byte_unit, time_unit

DIFFERENCE_NOTE = (
    "Difference: in final test accuracy, or else loss, to the baseline, over the seeds of both, ± half of its 95 % t "
    "interval; p by a two-sided paired t test over seeds, corrected for all comparisons in the panel by Holm's "
    "method."
)
SEEDS_NOTE = "Over several seeds: mean ± half of its 95 % t interval, of the finished runs; no ± if all are equal."


@dataclass(frozen=True)
class Unit:
    """How a quantity is written: a factor, the formats of value and half width, and the unit's symbol."""

    factor: float
    value: str
    half: str
    symbol: str = ""


UnitOf = Callable[[float], Unit]  # chooses the unit for a value of this size
Column = tuple[str, Callable[[Run], float], UnitOf]  # its title, a run's value or NaN, and the unit


def results_table(panels: Sequence[Panel], baseline: str = "") -> str:
    """Return the table of final losses, accuracies and costs, a line for each group.

    Over several seeds also the differences to the setting labelled `baseline`, or else to a panel's first.
    """
    groups = [group for panel in panels for group in panel.groups]
    columns = [own for own in _columns(groups) if any(isfinite(own[1](run)) for panel in panels for run in panel.runs)]
    seeds = any(len(group.runs) > 1 for group in groups)
    is_open = any(len(group.finished) < group.planned for group in groups)
    differences = [differences_to(panel, panel.baseline(baseline)) for panel in panels]
    differ = any(text for each in differences for text, _ in each)
    header = ["Run", *(["Seeds"] if seeds else []), *(["State"] if is_open else [])]
    header += [*(title for title, _, _ in columns), *(["Difference"] if differ else [])]
    bodies = [
        Body(
            panel.title,
            [
                [
                    Cell(group.label),
                    *([Cell(_seeds(group))] if seeds else []),
                    *([_state(group)] if is_open else []),
                    *_means(group.counted, columns),
                    *([Cell(*difference, "difference")] if differ else []),
                ]
                for group, difference in zip(panel.groups, own, strict=True)
            ],
        )
        for panel, own in zip(panels, differences, strict=True)
    ]
    note = " ".join(filter(None, (SEEDS_NOTE if seeds else "", DIFFERENCE_NOTE if differ else "")))
    return table("Final results", header, bodies, note, "results")


def _means(runs: Sequence[Run], columns: Sequence[Column]) -> list[Cell]:
    """Return the cells of a line; no mean where a run has no value, since that of the others is not of these seeds."""
    found = [(_values(runs, value), unit_of) for _, value, unit_of in columns]
    return [Cell(write_mean(own, unit_of)) if len(own) == len(runs) else NOTHING for own, unit_of in found]


def differences_to(panel: Panel, baseline: Group) -> list[tuple[str, str]]:
    """Return each group's difference to a baseline in final accuracy, or else loss, and its p value, as texts."""
    return [
        ("", "") if each is None or each.estimate.n < 2 else (show_difference(each), show_p(each.p, "p"))
        for each in differences_in(panel, baseline)
    ]


def write_mean(values: Sequence[float], unit_of: UnitOf) -> str:
    """Return the mean, and half of its 95 % t interval if that is not 0, in one unit; a dash without values."""
    if not values:
        return DASH
    found = estimate(values)
    unit = unit_of(found.mean)
    text = f"{unit.factor * found.mean:{unit.value}}"
    if width := found.half():
        half = f"{unit.factor * width:{unit.half}}"
        decimals = len(half.partition(".")[2])
        if "e" not in text + half and decimals > len(text.partition(".")[2]):
            text = f"{unit.factor * found.mean:,.{decimals}f}"
        text += f" ± {float(half):,.0f}" if "e+" in half else f" ± {half}"
    return f"{text} {unit.symbol}".rstrip()


def size(mean: float) -> Unit:
    """Return the unit of a number of bytes."""
    length, symbol = byte_unit(mean)
    return Unit(1 / length, ".3g" if mean < 999.5 * length else ",.0f", ".2g", symbol)


def seconds(mean: float) -> Unit:
    """Return the unit of a time in seconds."""
    unit = time_unit(mean)
    return Unit(1 / unit.seconds, ".3g" if mean < 999.5 * unit.seconds else ",.0f", ".2g", unit.symbol)


def count(mean: float) -> Unit:
    """Return how a count is written; a mean of counts need not be whole."""
    return Unit(1, ",.0f" if mean == round(mean) or mean >= 100 else ".1f", ",.0f" if mean >= 1000 else ".1f")


def plain(mean: float) -> Unit:
    """Return how a number without a unit is written."""
    return Unit(1, ".4g" if abs(mean) < 9999.5 else ",.0f", ".2g")


def _columns(groups: Sequence[Group]) -> list[Column]:
    """Return the columns of results; metrics of clients as mean and worst."""

    def last(name: str) -> Callable[[Run], float]:
        return lambda run: float(run.rows[name][-1]) if name in run.rows else nan

    def best(run: Run) -> float:
        return float(np.fmax.reduce(run.rows["test_accuracy"]))

    def share(_: float) -> Unit:
        return Unit(100, ".2f", ".2f", "%")

    shown = dict.fromkeys(name for group in groups for run in group.runs for name in run.rows if is_shown(run, name))
    spread = {name for column in shown for name in (f"{column}_std", f"p10_{column}", f"p90_{column}")}
    probed = [column for column in shown if column not in spread]  # see `spread_of`
    return [
        ("Training loss", last("train_loss"), plain),
        ("Final accuracy", last("test_accuracy"), share),
        ("Best accuracy", best, share),
        ("Mean cluster accuracy", last("mean_cluster_accuracy"), share),
        ("ARI", last("ari"), lambda _: Unit(1, ".3f", ".3f")),
        *((column_title(name), last(name), share if is_share(name) else plain) for name in probed),
        ("Client updates", last("client_updates"), count),
        ("Bytes sent", lambda run: float(run.bytes_sent[-1]), size),
        ("Virtual time", last("virtual_time"), seconds),
        ("Wall time", last("wall_time"), seconds),
    ]


def _values(runs: Sequence[Run], value: Callable[[Run], float]) -> list[float]:
    return [number for number in map(value, runs) if isfinite(number)]


def _seeds(group: Group) -> str:
    """Write consecutive seeds as a range."""
    seeds = sorted(group.seeds)
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}{DASH}{seeds[-1]}"
    return ", ".join(map(str, seeds))


def _state(group: Group) -> Cell:
    finished = len(group.finished)
    if finished == group.planned:
        return Cell("finished")
    if finished:
        return Cell(f"{finished} of {group.planned} finished", style="open")
    furthest = max(_values(group.runs, lambda run: float(run.rows["round"][-1])), default=0.0)
    planned = group.runs[0].config.get("rounds")
    return Cell(f"at round {furthest:,.0f}" + (f" of {planned:,}" if isinstance(planned, int) else ""), style="open")
