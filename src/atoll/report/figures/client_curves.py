"""Metrics of single clients, as sorted curves."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atoll.report.figures.style import STYLE, add_legend, line_styles, new_figure, title_and_factor
from atoll.report.reading.runs import Run
from atoll.support.errors import InputError


def plot_clients(runs: Sequence[Run], column: str, *, title: str = "") -> Figure:
    """Draw a metric's last value at each client, sorted, a curve for each run, with its mean as a dashed line.

    Runs that have not measured it are skipped. Raises InputError if no run has.
    """
    known = [run for run in runs if column in run.clients]
    if not known:
        raise InputError(f"There is nothing to plot: no run has measured {column} for single clients")
    with mpl.rc_context(STYLE):
        figure = new_figure(5.0, 3.4)
        axes = figure.subplots()
        draw_clients(axes, known, column, title)
        add_legend(figure, axes.get_legend_handles_labels()[0], handlelength=2.6)
    return figure


def draw_clients(ax: Axes, runs: Sequence[Run], column: str, title: str = "") -> None:
    """Draw a metric of single clients into given axes, as `plot_clients` does."""
    known = [run for run in runs if column in run.clients]
    y_label, factor = title_and_factor(column)
    labels = [f"{run.panel} {run.label}".strip() for run in known]
    styles = line_styles(labels)
    for run, label in zip(known, labels, strict=True):
        values = np.sort(run.clients[column]) * factor
        marker = "o" if len(values) == 1 else ""
        ax.plot(np.linspace(0, 100, len(values)), values, label=label, marker=marker, **styles[label])
        ax.axhline(values.mean(), color=styles[label]["color"], linewidth=0.8, linestyle="--")
    ax.plot([], color="#888888", linewidth=0.8, linestyle="--", label="Mean over clients")
    ax.set_xlim(0, 100)
    ax.grid(visible=True)
    ax.set(xlabel="Clients (%), in ascending order", ylabel=y_label, title=title)
