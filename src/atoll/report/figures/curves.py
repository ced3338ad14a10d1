"""Training curves: loss and accuracy of several runs, side by side in panels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from atoll.report.figures.curve_axes import (
    ACCURACY,
    LOSS,
    MAX_COLUMNS,
    TEST_LOSS,
    CurveAxis,
    XColumn,
    axis_of,
    panel_columns,
    set_x,
    set_y,
    shown,
    x_axis,
)
from atoll.report.figures.style import STYLE, WIDTH_INCHES, add_legend, drawn_width, line_styles, new_figure
from atoll.report.reading.groups import Group, group_runs, make_panels, overlay
from atoll.report.reading.mean_curves import mean_curve
from atoll.report.reading.runs import Run
from atoll.runs.columns import is_built_in
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.estimates import Band
from atoll.support.requiring import require

Styles: TypeAlias = Mapping[str, dict[str, Any]]
BAND_ALPHA = 0.2
BESIDE_INCHES = 5.0  # width from which two charts are side by side


def plot_curves(runs: Sequence[Run], x: XColumn = "round", *, title: str = "", band: Band = "interval") -> Figure:
    """Draw training loss and test accuracy against rounds, client updates, virtual time or bytes sent up.

    Runs that differ only in seed and label are one line, their mean, in a band: its 95 % t interval or, if `band` is
    "spread", one sample standard deviation to each side. Only finished runs count, unless none is. A single panel has
    loss beside accuracy; several are side by side, loss above accuracy, at most four in a row. A label looks the same
    in every panel. Missing values are skipped. If no run has an accuracy, the test loss is drawn instead. Raises
    InputError if there are no runs.
    """
    if not runs:
        raise InputError("There is nothing to plot: no runs were given")
    require("band", band, Band)
    tested = [axis for axis in (ACCURACY, TEST_LOSS) if shown(runs, axis).size]
    return _plot(group_runs(runs), x_axis(runs, x), [LOSS, *tested[:1]], title, band)


def draw_curves(
    ax: Axes, runs: Sequence[Run], y: str, x: XColumn = "round", title: str = "", band: Band = "interval"
) -> None:
    """Draw one column of runs against another into given axes, with a legend, as `plot_curves` does.

    Raises InputError if no run has recorded it.
    """
    axis, known = axis_of(y), _having(runs, y)
    groups, across = group_runs(overlay(known) if len({run.panel for run in known}) > 1 else known), x_axis(known, x)
    styles = line_styles(group.label for group in groups)
    set_y([ax], [_draw(ax, groups, across, axis, styles, band)], axis)
    set_x([ax], _across(groups, across), across, stacked=False)
    ax.set_title(title)
    ax.legend()


def differ_in_bytes(runs: Sequence[Run]) -> bool:
    """Return whether the mean bytes sent up for a client update differ between runs."""
    last = [(run.rows["bytes_up"][-1], run.rows["client_updates"][-1]) for run in runs]
    sizes = [sent / updates for sent, updates in last if updates]
    return bool(sizes) and max(sizes) > 1.01 * min(sizes)


def plot_probe(
    runs: Sequence[Run], column: str, x: XColumn = "round", title: str = "", band: Band = "interval"
) -> Figure:
    """Draw one column of runs, laid out as in `plot_curves`; accuracies in per cent.

    Runs that have not recorded it are skipped. Raises InputError if no run has.
    """
    axis, known = axis_of(column), _having(runs, column)
    return _plot(group_runs(known), x_axis(known, x), [axis], title, band)


def _having(runs: Sequence[Run], column: str) -> list[Run]:
    known = [run for run in runs if has_column(run, column)]
    if not known:
        raise InputError(f"There is nothing to plot: no run has the column {column}")
    return known


def has_column(run: Run, column: str) -> bool:
    """Return whether the run has recorded a value of this column."""
    return column in run.rows and bool(np.isfinite(run.rows[column]).any())


def probed(runs: Sequence[Run]) -> list[str]:
    """Return the columns of custom evaluation metrics."""
    columns = dict.fromkeys(name for run in runs for name in run.rows if has_column(run, name))
    return [name for name in columns if not is_built_in(name)]


def _plot(groups: Sequence[Group], across: CurveAxis, y_axes: Sequence[CurveAxis], title: str, band: Band) -> Figure:
    panels = make_panels(groups)
    with mpl.rc_context(STYLE):
        styles = line_styles(group.label for group in groups)
        figure, grid = _make_grid(len(panels), len(y_axes))
        for row, y_axis in enumerate(y_axes):
            pairs = zip(grid[row], panels, strict=True)
            drawn = [_draw(axes, panel.groups, across, y_axis, styles, band) for axes, panel in pairs]
            set_y(grid[row], drawn, y_axis)
        for column, panel in enumerate(panels):
            set_x([row[column] for row in grid], _across(panel.groups, across), across, stacked=len(panels) > 1)
            if len(panels) > 1:
                grid[0][column].set_title(panel.title)
        if heading := title or ("" if len(panels) > 1 else groups[0].panel):
            figure.suptitle(heading, fontsize=10.5, fontweight="bold")
        add_legend(figure, [Line2D([], [], label=label, **style) for label, style in styles.items()], handlelength=2.6)
        figure.align_ylabels()
    return figure


def _make_grid(panels: int, rows: int) -> tuple[Figure, list[list[Axes]]]:
    """Return the figure, and its axes as [quantity][panel]."""
    if panels == 1:
        if drawn_width(WIDTH_INCHES) < BESIDE_INCHES:  # one above the other
            figure = new_figure(WIDTH_INCHES, 0.6 + 3.0 * rows)
            return figure, [[axes] for axes in figure.subplots(rows, 1, squeeze=False)[:, 0]]
        figure = new_figure(WIDTH_INCHES if rows > 1 else 5.0, 3.4)
        return figure, [[axes] for axes in figure.subplots(1, rows, squeeze=False)[0]]
    columns = panel_columns(panels)
    bands = math.ceil(panels / columns)
    width = WIDTH_INCHES if columns < MAX_COLUMNS else 1.25 * WIDTH_INCHES
    figure = new_figure(width, 0.6 + 2.1 * rows * bands)
    cells = figure.subplots(rows * bands, columns, squeeze=False)
    grid = [[cells[rows * (p // columns) + row, p % columns] for p in range(panels)] for row in range(rows)]
    used = {axes for row in grid for axes in row}
    for axes in set(cells.flat) - used:
        axes.remove()
    return figure, grid


def _draw(
    axes: Axes, groups: Sequence[Group], across: CurveAxis, y_axis: CurveAxis, styles: Styles, band: Band
) -> Floats:
    """Draw each group's mean and its band; return the values that the vertical axis should span."""
    limits, factor = [], y_axis.factor
    for group in groups:
        # Points without both values are left out, else a column recorded in every second row would have no lines.
        curve = mean_curve(group.counted, across.column, y_axis.column, band)
        known = curve.x > 0 if across.log else np.ones(len(curve.x), dtype=bool)  # zero would be drawn as a level line
        x, style = curve.x[known] * across.factor, styles[group.label]
        marker = "o" if np.count_nonzero(known) == 1 else ""
        axes.plot(x, curve.y[known] * factor, label=group.label, marker=marker, markersize=4, **style)
        if curve.has_band:
            low, high = curve.low[known] * factor, curve.high[known] * factor
            alpha = BAND_ALPHA / math.sqrt(max(1.0, len(groups) / 3))  # many bands lie over each other
            axes.fill_between(x, low, high, color=style["color"], alpha=alpha, linewidth=0)
        limits.append(curve.limits * factor)
    return np.concatenate(limits)


def _across(groups: Sequence[Group], across: CurveAxis) -> Floats:
    """Return the horizontal values of all groups' curves, as the axis shows them."""
    each = [mean_curve(group.counted, across.column, across.column).y for group in groups]
    return np.concatenate(each) * across.factor
