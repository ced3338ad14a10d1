"""The axes of training curves: titles, units, scales, and limits that panels share."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from atoll.report.figures.style import WIDTH_INCHES, drawn_width, label_log_scale, title_and_factor, use_log_scale
from atoll.report.reading.runs import Run
from atoll.runs.columns import is_share, rises
from atoll.support.arrays import Floats
from atoll.support.requiring import require
from atoll.support.units import byte_unit, format_count, time_unit

XColumn: TypeAlias = Literal["round", "client_updates", "virtual_time", "bytes_up"]
Limits: TypeAlias = tuple[float, float]

MAX_COLUMNS = 4  # panels side by side
STEPS = [1, 2, 5, 10]
LOG_RATIO = 30.0  # a loss that falls further than this needs a logarithmic axis to show its end


@dataclass(frozen=True)
class CurveAxis:
    """How an axis shows a column: its title, the factor from stored to shown values, whether always logarithmic."""

    column: str
    title: str
    factor: float = 1.0
    log: bool = False


LOSS = CurveAxis("train_loss", "Training loss")
TEST_LOSS = CurveAxis("test_loss", "Test loss")
ACCURACY = CurveAxis("test_accuracy", "Test accuracy (%)", 100.0)
_KNOWN = (LOSS, TEST_LOSS, ACCURACY, CurveAxis("parameter_error", "Parameter error", log=True))


def axis_of(column: str) -> CurveAxis:
    """Return the axis that shows a column."""
    return next((axis for axis in _KNOWN if axis.column == column), CurveAxis(column, *title_and_factor(column)))


def x_axis(runs: Sequence[Run], x: XColumn) -> CurveAxis:
    """Return the horizontal axis, in a unit that suits these runs."""
    require("x", x, XColumn)
    most = float(shown(runs, CurveAxis(x, "")).max(initial=0.0))
    if x == "virtual_time":
        unit = time_unit(most)
        return CurveAxis(x, f"Virtual time ({unit.name})", 1 / unit.seconds)
    if x == "bytes_up":
        length, symbol = byte_unit(most)
        return CurveAxis(x, f"Sent up ({symbol})", 1 / length, log=True)
    return CurveAxis(x, {"round": "Round", "client_updates": "Client updates"}[x])


def shown(runs: Sequence[Run], axis: CurveAxis) -> Floats:
    """Return all finite values of the runs, as the axis shows them."""
    values = np.concatenate([run.rows[axis.column] for run in runs]) * axis.factor
    return values[np.isfinite(values)]


def panel_columns(panels: int) -> int:
    """Return how many panels are side by side, with rows as even as possible."""
    most = min(MAX_COLUMNS, max(1, round(drawn_width(WIDTH_INCHES) / (WIDTH_INCHES / MAX_COLUMNS))))
    return math.ceil(panels / math.ceil(panels / most))


def set_x(column: Sequence[Axes], values: Floats, axis: CurveAxis, *, stacked: bool) -> None:
    """Set scale, limits and title of the horizontal axes of a column of charts."""
    low, high = values.min(initial=math.inf, where=(values > 0) | (not axis.log)), values.max(initial=0.0)
    for axes in column:
        if axis.log:
            axes.set_xscale("log")
            label_log_scale(axes.xaxis, low, high)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=axis.factor == 1))
        axes.xaxis.set_major_formatter(format_count)
        if low < high:
            axes.set_xlim(low, high)
        axes.grid(visible=True)
        if stacked and axes is not column[-1]:
            axes.tick_params(labelbottom=False)
        else:
            axes.set_xlabel(axis.title)


def set_y(row: Sequence[Axes], panels: Sequence[Floats], axis: CurveAxis) -> None:
    """Set scale, limits and title of the vertical axes of a row of charts, given each one's values."""
    wide = any(each.max(initial=0.0) > LOG_RATIO * each.min(initial=math.inf, where=each > 0) for each in panels)
    signed = any(each.min(initial=0.0) < 0 for each in panels)  # which a logarithmic axis leaves out
    log = axis.log or (wide and not signed and not rises(axis.column) and not is_share(axis.column))
    leftmost = row[:: panel_columns(len(row))]
    limits = list(_common(list(_limits(panels, axis, log=log)), log=log))
    for axes, panel_limits, values in zip(row, limits, panels, strict=True):
        if not values.size:
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color="#888888")
        if log:
            use_log_scale(axes, *panel_limits)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
            axes.set_ylim(*panel_limits)
        if axes in leftmost:
            axes.set_ylabel(axis.title)
        elif len(set(limits)) == 1:
            axes.tick_params(labelleft=False)


def _limits(panels: Sequence[Floats], axis: CurveAxis, *, log: bool) -> Iterator[Limits]:
    for values in panels:
        if log:
            positive = values[values > 0]
            yield (positive.min() / 1.3, positive.max() * 1.3) if positive.size else (0.1, 1.0)
        elif not values.size:
            yield 0.0, 100.0 if axis is ACCURACY else 1.0
        elif axis is ACCURACY:
            low, high = 10 * math.floor(values.min() / 10), 10 * math.ceil(values.max() / 10)
            low, high = max(0, min(low, high - 10)), max(high, 10)
            yield low - 0.02 * (high - low), high + 0.02 * (high - low)
        else:
            yield min(0.0, 1.05 * values.min()), 1.05 * max(values.max(), 1e-12)


def _common(limits: Sequence[Limits], *, log: bool) -> Sequence[Limits]:
    """Return common limits for all panels, unless that would flatten one of them."""
    low, high = min(low for low, _ in limits), max(high for _, high in limits)

    def length(low: float, high: float) -> float:
        return math.log(high / low) if log else high - low

    if all(length(low, high) <= 2 * length(*own) for own in limits):
        return [(low, high)] * len(limits)
    return limits
