"""Training curves: loss and accuracy of several runs, side by side in panels."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from atoll.report.figures.style import (
    STYLE,
    WIDTH_INCHES,
    drawn_width,
    legend_columns,
    line_styles,
    new_figure,
    use_log_scale,
)
from atoll.report.reading.runs import Run
from atoll.report.reading.units import byte_unit, format_count, time_unit
from atoll.runs.columns import is_built_in, title_of
from atoll.support.arrays import Floats
from atoll.support.errors import InputError

XColumn: TypeAlias = Literal["round", "client_updates", "virtual_time", "bytes_up"]
Limits: TypeAlias = tuple[float, float]

MAX_COLUMNS = 4
BESIDE_INCHES = 5.0  # width from which two charts stand side by side
STEPS = [1, 2, 5, 10]
LOG_RATIO = 30.0  # a loss that falls further than this shows its end only on a logarithmic axis


@dataclass(frozen=True)
class _Axis:
    """A column as an axis shows it: its title, the factor from stored to shown values, whether always logarithmic."""

    column: str
    title: str
    factor: float = 1.0
    log: bool = False


_LOSS = _Axis("train_loss", "Training loss")
_TEST_LOSS = _Axis("test_loss", "Test loss")
_ACCURACY = _Axis("test_accuracy", "Test accuracy (%)", 100.0)
_PARAMETER_ERROR = _Axis("parameter_error", "Parameter error", log=True)


def plot_curves(runs: Sequence[Run], x: XColumn = "round", *, title: str = "") -> Figure:
    """Draw training loss and test accuracy against rounds, client updates, virtual time or bytes sent up.

    One panel stands as loss beside accuracy; several stand side by side, loss above accuracy, at most four in
    a row. A label looks the same in every panel. Probes without a value are passed over. Where no run has an
    accuracy, test loss takes its place. Raises InputError when there are no runs.
    """
    if not runs:
        raise InputError("There is nothing to plot: no runs were given.")
    return _plot(runs, _x_axis(runs, x), _y_axes(runs), title)


def draw_curves(ax: Axes, runs: Sequence[Run], y: str = "test_accuracy", x: XColumn = "round", title: str = "") -> None:
    """Draw one column of runs against another into axes that are given, with a legend; accuracies in per cent.

    Raises InputError when no run has recorded it.
    """
    axis = next((known for known in (_LOSS, _TEST_LOSS, _ACCURACY, _PARAMETER_ERROR) if known.column == y), _own(y))
    known = [run for run in runs if y in run.rows and _shown([run], axis).size]
    if not known:
        raise InputError(f"There is nothing to plot: no run has the column {y}.")
    x_axis, styles = _x_axis(known, x), line_styles(run.label for run in known)
    for run in known:
        _draw(ax, run, x_axis, axis, styles[run.label])
    _set_y([ax], [_shown(known, axis)], axis)
    _set_x([ax], _shown(known, x_axis), x_axis, stacked=False)
    ax.set_title(title)
    ax.legend()


def differ_in_bytes(runs: Sequence[Run]) -> bool:
    """Return whether the runs' clients send different numbers of bytes up, on average, for an update."""
    last = [(run.rows["bytes_up"][-1], run.rows["client_updates"][-1]) for run in runs]
    sizes = [sent / updates for sent, updates in last if updates]
    return bool(sizes) and max(sizes) > 1.01 * min(sizes)


def plot_parameter_error(runs: Sequence[Run], *, title: str = "") -> Figure:
    """Draw the distance to the planted parameters against rounds, on a logarithmic axis.

    Laid out as `plot_curves` does; runs that have not recorded it are passed over. Raises InputError when no
    run has.
    """
    known = [run for run in runs if has_parameter_error(run)]
    if not known:
        raise InputError("There is nothing to plot: no run has the column parameter_error.")
    return _plot(known, _x_axis(known, "round"), [_PARAMETER_ERROR], title)


def plot_probe(runs: Sequence[Run], column: str, *, title: str = "") -> Figure:
    """Draw what a probe of one's own measured against rounds; what is called an accuracy, in per cent.

    Laid out as `plot_curves` does; runs that have not recorded it are passed over. Raises InputError when no
    run has.
    """
    axis = _own(column)
    known = [run for run in runs if column in run.rows and _shown([run], axis).size]
    if not known:
        raise InputError(f"There is nothing to plot: no run has the column {column}.")
    return _plot(known, _x_axis(known, "round"), [axis], title)


def _own(column: str) -> _Axis:
    factor, unit = (100.0, " (%)") if column.endswith("accuracy") else (1.0, "")
    return _Axis(column, title_of(column) + unit, factor)


def probed(runs: Sequence[Run]) -> list[str]:
    """Return the columns that probes of one's own have measured."""
    columns = {name: None for run in runs for name, values in run.rows.items() if np.isfinite(values).any()}
    return [name for name in columns if not is_built_in(name)]


def has_parameter_error(run: Run) -> bool:
    """Return whether the run has recorded its distance to planted parameters."""
    return _PARAMETER_ERROR.column in run.rows and bool(_shown([run], _PARAMETER_ERROR).size)


def _plot(runs: Sequence[Run], x_axis: _Axis, y_axes: Sequence[_Axis], title: str) -> Figure:
    panels = {panel: [run for run in runs if run.panel == panel] for panel in dict.fromkeys(r.panel for r in runs)}
    with mpl.rc_context(STYLE):
        figure, grid = _make_grid(len(panels), len(y_axes))
        styles = line_styles(run.label for run in runs)
        for row, y_axis in enumerate(y_axes):
            for axes, members in zip(grid[row], panels.values(), strict=True):
                for run in members:
                    _draw(axes, run, x_axis, y_axis, styles[run.label])
            _set_y(grid[row], [_shown(members, y_axis) for members in panels.values()], y_axis)
        for column, (panel, members) in enumerate(panels.items()):
            _set_x([row[column] for row in grid], _shown(members, x_axis), x_axis, stacked=len(panels) > 1)
            if len(panels) > 1:
                grid[0][column].set_title(panel)
        if heading := title or ("" if len(panels) > 1 else runs[0].panel):
            figure.suptitle(heading, fontsize=10.5, fontweight="bold")
        _add_legend(figure, styles)
        figure.align_ylabels()
    return figure


def _x_axis(runs: Sequence[Run], x: XColumn) -> _Axis:
    if x == "virtual_time":
        seconds = np.concatenate([run.rows[x] for run in runs])
        unit = time_unit(float(np.max(seconds, initial=0.0, where=np.isfinite(seconds))))
        return _Axis(x, f"Virtual time ({unit.name})", 1 / unit.seconds)
    if x == "bytes_up":
        length, symbol = byte_unit(max(float(np.max(run.rows[x], initial=0.0)) for run in runs))
        return _Axis(x, f"Sent up ({symbol})", 1 / length, log=True)
    return _Axis(x, {"round": "Round", "client_updates": "Client updates"}[x])


def _y_axes(runs: Sequence[Run]) -> list[_Axis]:
    """Return the loss, and beside it the accuracy or, where there is none, the test loss."""
    second = next((axis for axis in (_ACCURACY, _TEST_LOSS) if _shown(runs, axis).size), None)
    return [_LOSS, second] if second else [_LOSS]


def _shown(runs: Sequence[Run], axis: _Axis) -> Floats:
    values = np.concatenate([run.rows[axis.column] for run in runs]) * axis.factor
    return values[np.isfinite(values)]


def _columns(panels: int) -> int:
    """Return how many panels stand side by side, the rows as even as they get."""
    most = min(MAX_COLUMNS, max(1, round(drawn_width(WIDTH_INCHES) / (WIDTH_INCHES / MAX_COLUMNS))))
    return math.ceil(panels / math.ceil(panels / most))


def _make_grid(panels: int, rows: int) -> tuple[Figure, list[list[Axes]]]:
    """Return the figure and its axes as [quantity][panel]."""
    if panels == 1:
        if drawn_width(WIDTH_INCHES) < BESIDE_INCHES:  # one above the other
            figure = new_figure(WIDTH_INCHES, 0.6 + 3.0 * rows)
            return figure, [[axes] for axes in figure.subplots(rows, 1, squeeze=False)[:, 0]]
        figure = new_figure(WIDTH_INCHES if rows > 1 else 5.0, 3.4)
        return figure, [[axes] for axes in figure.subplots(1, rows, squeeze=False)[0]]
    columns = _columns(panels)
    bands = math.ceil(panels / columns)
    width = WIDTH_INCHES if columns < MAX_COLUMNS else 1.25 * WIDTH_INCHES
    figure = new_figure(width, 0.6 + 2.1 * rows * bands)
    cells = figure.subplots(rows * bands, columns, squeeze=False)
    grid = [[cells[rows * (p // columns) + row, p % columns] for p in range(panels)] for row in range(rows)]
    used = {axes for row in grid for axes in row}
    for axes in set(cells.flat) - used:
        axes.remove()
    return figure, grid


def _draw(axes: Axes, run: Run, x_axis: _Axis, y_axis: _Axis, style: dict[str, Any]) -> None:
    x, y = run.rows[x_axis.column] * x_axis.factor, run.rows[y_axis.column] * y_axis.factor
    # Without this a column that is recorded at every second probe only would have no two neighbours to join.
    known = np.isfinite(x) & np.isfinite(y) & (x > 0 if x_axis.log else True)  # zero would be drawn as a level line
    marker = "o" if np.count_nonzero(known) == 1 else ""
    axes.plot(x[known], y[known], label=run.label, marker=marker, markersize=4, **style)


def _set_x(column: Sequence[Axes], values: Floats, axis: _Axis, *, stacked: bool) -> None:
    shown = values[values > 0] if axis.log else values
    for axes in column:
        if axis.log:
            axes.set_xscale("log")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=axis.factor == 1))
        axes.xaxis.set_major_formatter(format_count)
        if shown.size and shown.min() < shown.max():
            axes.set_xlim(shown.min(), shown.max())
        axes.grid(visible=True)
        if stacked and axes is not column[-1]:
            axes.tick_params(labelbottom=False)
        else:
            axes.set_xlabel(axis.title)


def _set_y(row: Sequence[Axes], panels: Sequence[Floats], axis: _Axis) -> None:
    log = axis.log or (axis is not _ACCURACY and any(map(_spans_decades, panels)))
    leftmost = row[:: _columns(len(row))]
    limits = list(_common(list(_limits(panels, axis, log=log)), log=log))
    for axes, panel_limits in zip(row, limits, strict=True):
        if log:
            use_log_scale(axes, *panel_limits)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
            axes.set_ylim(*panel_limits)
        if axes in leftmost:
            axes.set_ylabel(axis.title)
        elif len(set(limits)) == 1:
            axes.tick_params(labelleft=False)


def _spans_decades(values: Floats) -> bool:
    positive = values[values > 0]
    return bool(positive.size) and bool(positive.max() > LOG_RATIO * positive.min())


def _limits(panels: Sequence[Floats], axis: _Axis, *, log: bool) -> Iterator[Limits]:
    for values in panels:
        if log:
            positive = values[values > 0]
            yield (positive.min() / 1.3, positive.max() * 1.3) if positive.size else (0.1, 1.0)
        elif not values.size:
            yield 0.0, 100.0 if axis is _ACCURACY else 1.0
        elif axis is _ACCURACY:
            low, high = 10 * math.floor(values.min() / 10), 10 * math.ceil(values.max() / 10)
            low = min(low, high - 10)
            yield low - 0.02 * (high - low), high + 0.02 * (high - low)
        else:
            yield min(0.0, 1.05 * values.min()), 1.05 * max(values.max(), 1e-12)


def _common(limits: Sequence[Limits], *, log: bool) -> Sequence[Limits]:
    """Let the panels share their limits, unless that would flatten one of them."""
    low, high = min(low for low, _ in limits), max(high for _, high in limits)

    def length(low: float, high: float) -> float:
        return math.log(high / low) if log else high - low

    if all(length(low, high) <= 2 * length(*own) for own in limits):
        return [(low, high)] * len(limits)
    return limits


def _add_legend(figure: Figure, styles: dict[str, dict[str, Any]]) -> None:
    figure.legend(
        handles=[Line2D([], [], label=label, **style) for label, style in styles.items()],
        loc="outside lower center",
        ncols=legend_columns(styles, figure.get_figwidth()),
        handlelength=2.6,
    )
