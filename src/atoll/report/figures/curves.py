"""Training curves: loss and accuracy of several runs, side by side in panels."""

import math
from collections.abc import Sequence
from typing import Any

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
from atoll.report.reading.runs import Run
from atoll.runs.columns import is_built_in
from atoll.support.errors import InputError

BESIDE_INCHES = 5.0  # width from which two charts are side by side


def plot_curves(runs: Sequence[Run], x: XColumn = "round", *, title: str = "") -> Figure:
    """Draw training loss and test accuracy against rounds, client updates, virtual time or bytes sent up.

    A single panel has loss beside accuracy; several are side by side, loss above accuracy, at most four in a row.
    A label looks the same in every panel. Missing values are skipped. If no run has an accuracy, the test loss is
    drawn instead. Raises InputError if there are no runs.
    """
    if not runs:
        raise InputError("There is nothing to plot: no runs were given.")
    return _plot(runs, x_axis(runs, x), _y_axes(runs), title)


def draw_curves(ax: Axes, runs: Sequence[Run], y: str = "test_accuracy", x: XColumn = "round", title: str = "") -> None:
    """Draw one column of runs against another into given axes, with a legend; accuracies in per cent.

    Raises InputError if no run has recorded it.
    """
    axis, known = axis_of(y), _having(runs, y)
    across, styles = x_axis(known, x), line_styles(run.label for run in known)
    for run in known:
        _draw(ax, run, across, axis, styles[run.label])
    set_y([ax], [shown(known, axis)], axis)
    set_x([ax], shown(known, across), across, stacked=False)
    ax.set_title(title)
    ax.legend()


def differ_in_bytes(runs: Sequence[Run]) -> bool:
    """Return whether the mean bytes sent up for a client update differ between runs."""
    last = [(run.rows["bytes_up"][-1], run.rows["client_updates"][-1]) for run in runs]
    sizes = [sent / updates for sent, updates in last if updates]
    return bool(sizes) and max(sizes) > 1.01 * min(sizes)


def plot_probe(runs: Sequence[Run], column: str, *, title: str = "") -> Figure:
    """Draw one column of runs against rounds, laid out as in `plot_curves`; accuracies in per cent.

    Runs that have not recorded it are skipped. Raises InputError if no run has.
    """
    axis, known = axis_of(column), _having(runs, column)
    return _plot(known, x_axis(known, "round"), [axis], title)


def _having(runs: Sequence[Run], column: str) -> list[Run]:
    known = [run for run in runs if has_column(run, column)]
    if not known:
        raise InputError(f"There is nothing to plot: no run has the column {column}.")
    return known


def has_column(run: Run, column: str) -> bool:
    """Return whether the run has recorded a value of this column."""
    return column in run.rows and bool(np.isfinite(run.rows[column]).any())


def probed(runs: Sequence[Run]) -> list[str]:
    """Return the columns of custom evaluation metrics."""
    columns = dict.fromkeys(name for run in runs for name in run.rows if has_column(run, name))
    return [name for name in columns if not is_built_in(name)]


def _plot(runs: Sequence[Run], across: CurveAxis, y_axes: Sequence[CurveAxis], title: str) -> Figure:
    panels = {panel: [run for run in runs if run.panel == panel] for panel in dict.fromkeys(r.panel for r in runs)}
    with mpl.rc_context(STYLE):
        figure, grid = _make_grid(len(panels), len(y_axes))
        styles = line_styles(run.label for run in runs)
        for row, y_axis in enumerate(y_axes):
            for axes, members in zip(grid[row], panels.values(), strict=True):
                for run in members:
                    _draw(axes, run, across, y_axis, styles[run.label])
            set_y(grid[row], [shown(members, y_axis) for members in panels.values()], y_axis)
        for column, (panel, members) in enumerate(panels.items()):
            set_x([row[column] for row in grid], shown(members, across), across, stacked=len(panels) > 1)
            if len(panels) > 1:
                grid[0][column].set_title(panel)
        if heading := title or ("" if len(panels) > 1 else runs[0].panel):
            figure.suptitle(heading, fontsize=10.5, fontweight="bold")
        add_legend(figure, [Line2D([], [], label=label, **style) for label, style in styles.items()], handlelength=2.6)
        figure.align_ylabels()
    return figure


def _y_axes(runs: Sequence[Run]) -> list[CurveAxis]:
    """Return the training loss and the accuracy or, without one, the test loss."""
    second = next((axis for axis in (ACCURACY, TEST_LOSS) if shown(runs, axis).size), None)
    return [LOSS, second] if second else [LOSS]


def _make_grid(panels: int, rows: int) -> tuple[Figure, list[list[Axes]]]:
    """Return the figure and its axes as [quantity][panel]."""
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


def _draw(axes: Axes, run: Run, across: CurveAxis, y_axis: CurveAxis, style: dict[str, Any]) -> None:
    x, y = run.rows[across.column] * across.factor, run.rows[y_axis.column] * y_axis.factor
    # Else a column that is recorded in every second row only would have no neighbouring points to connect.
    known = np.isfinite(x) & np.isfinite(y) & (x > 0 if across.log else True)  # zero would be drawn as a level line
    marker = "o" if np.count_nonzero(known) == 1 else ""
    axes.plot(x[known], y[known], label=run.label, marker=marker, markersize=4, **style)
