"""Bars that compare clusterings: completion times, EMD and others."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from atoll.report.figures.before_training import index_ticks
from atoll.report.figures.network_map import as_finite
from atoll.report.figures.style import BLUE, PALETTE, STYLE, WIDTH_INCHES, add_legend, drawn_width, new_figure
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.estimates import estimate
from atoll.support.units import time_unit

OVER_COLOR = PALETTE[1]
LINE_COLOR = "#333333"
EMPTY_COLOR = "#888888"
MAX_WRITTEN = 24  # bars beyond which their values do not fit
PATCHES = {"handlelength": 1.6, "handleheight": 0.7}  # of a legend of bars
STEPS = [1, 2, 2.5, 5, 10]


def plot_completion(completion_seconds: ArrayLike, limit_seconds: ArrayLike | None = None, title: str = "") -> Figure:
    """Draw each aggregator's completion time as a bar, and its limit as a line.

    `completion_seconds` is [aggregators]; 0 is an aggregator without clients, marked by a cross. `limit_seconds`
    is one limit for all, or [aggregators]; inf is no limit. Bars over their limit have another colour. Raises
    InputError for negative or missing times, and if the numbers of aggregators differ.
    """
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, 3.2)
        axes = figure.subplots()
        add_legend(figure, draw_completion(axes, completion_seconds, limit_seconds, title), **PATCHES)
    return figure


def draw_completion(
    ax: Axes, completion_seconds: ArrayLike, limit_seconds: ArrayLike | None = None, title: str = ""
) -> list[Artist]:
    """Draw completion times into given axes, as `plot_completion` does; return the legend's entries."""
    seconds = not_negative(as_finite(completion_seconds, "completion_seconds", "[aggregators]"), "completion_seconds")
    limits = _as_limits(limit_seconds, len(seconds))
    bounded = np.isfinite(limits)
    over = seconds > limits * (1 + 1e-9)
    unit = time_unit(float(np.concatenate([seconds, limits[bounded]]).max()))
    places = np.arange(len(seconds))
    empty = seconds == 0
    ax.bar(places, seconds / unit.seconds, width=0.8, color=np.where(over, OVER_COLOR, BLUE).tolist())
    ends = places[bounded] - 0.5, places[bounded] + 0.5
    ax.hlines(limits[bounded] / unit.seconds, *ends, color=LINE_COLOR, linewidth=1.4, capstyle="projecting")
    ax.set_xticks(index_ticks(len(seconds), 25))
    ax.set(xlabel="Aggregator", ylabel=f"Completion time ({unit.name})", title=title)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.6, len(seconds) - 0.4)
    from_zero(ax, max(seconds.max(), limits[bounded].max(initial=0.0)) / unit.seconds)
    crosses = np.full(np.count_nonzero(empty), 0.03 * ax.get_ylim()[1])
    ax.scatter(places[empty], crosses, s=24, marker="x", color=EMPTY_COLOR)
    entries: list[tuple[bool, Artist]] = [
        (bool((~over & ~empty).any() and bounded.any()), Patch(color=BLUE, label="Within the limit")),
        (bool(over.any()), Patch(color=OVER_COLOR, label="Over the limit")),
        (bool(bounded.any()), Line2D([], [], color=LINE_COLOR, linewidth=1.4, label="Limit")),
        (bool(empty.any()), Line2D([], [], linestyle="", marker="x", color=EMPTY_COLOR, label="No clients")),
    ]
    return [handle for wanted, handle in entries if wanted]


def plot_bars(
    values: Mapping[str, Mapping[str, float | ArrayLike]], y_label: str, title: str = "", group_label: str = ""
) -> Figure:
    """Draw groups of bars side by side, as FedUC's figures 5 (mean EMD) and 6 (largest completion) do.

    `values[group][series]` is a number, or a number for each seed: then the bar is their mean and the whisker its
    95 % t interval. A series (a clustering, say) has the same colour in all groups (patterns, say); a group
    may lack a series. The vertical axis begins at 0. Raises InputError without values or for invalid ones.
    """
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, 3.6)
        add_legend(figure, draw_bars(figure.subplots(), values, y_label, title, group_label), **PATCHES)
    return figure


def draw_bars(
    ax: Axes,
    values: Mapping[str, Mapping[str, float | ArrayLike]],
    y_label: str,
    title: str = "",
    group_label: str = "",
) -> list[Artist]:
    """Draw groups of bars into given axes, as `plot_bars` does; return the legend's entries."""
    table = {
        (group, name): not_negative(as_finite(np.atleast_1d(value), where, "[seeds]"), where)
        for group, row in values.items()
        for name, value in row.items()
        for where in [f"values[{group!r}][{name!r}]"]
    }
    if not table:
        raise InputError("There is nothing to draw: values has no bars")
    names = list(dict.fromkeys(name for _, name in table))
    width = 0.8 / len(names)
    tops = []
    for (group, name), seeds in table.items():
        index = names.index(name)
        place = list(values).index(group) + (index - (len(names) - 1) / 2) * width
        tops.append(_draw_bar(ax, place, 0.92 * width, seeds, PALETTE[index % len(PALETTE)]))
        if len(table) <= MAX_WRITTEN:
            text = f"{seeds.mean():#.3g}" if seeds.mean() < 99.95 else f"{seeds.mean():,.0f}"
            ax.annotate(text, (place, tops[-1]), (0, 2), textcoords="offset points", ha="center", fontsize=7.5)
    ax.set_xticks(range(len(values)), list(values), **_slant(list(values)))
    ax.tick_params(axis="x", length=0)
    ax.set(xlim=(-0.55, len(values) - 0.45), ylabel=y_label, title=title)
    counts = {len(seeds) for seeds in table.values()}
    note = f"Mean and 95 % t interval over {f'{max(counts)} ' * (len(counts) == 1)}seeds" * (max(counts) > 1)
    ax.set_xlabel("\n".join(filter(None, (group_label, note))))
    from_zero(ax, 1.05 * max(tops))
    return [Patch(color=PALETTE[index % len(PALETTE)], label=name) for index, name in enumerate(names)]


def not_negative(array: Floats, name: str) -> Floats:
    """Return the array, after checking that no value is negative; `name` is for the message."""
    wrong = np.argwhere(array < 0)
    if wrong.size:
        raise InputError(f"{name}{wrong[0].tolist()} = {array[tuple(wrong[0])]:g}: must not be negative")
    return array


def _as_limits(limit_seconds: ArrayLike | None, aggregators: int) -> Floats:
    """Return the limit of every aggregator, inf where there is none."""
    limits = np.asarray(np.inf if limit_seconds is None else limit_seconds, dtype=np.float64)
    if limits.shape not in ((), (aggregators,)):
        raise InputError(f"limit_seconds has shape {limits.shape}, but there are {aggregators} aggregators")
    if not (limits > 0).all():
        raise InputError(f"limit_seconds = {limits.tolist()}: every limit must be positive")
    return np.broadcast_to(limits, (aggregators,))


def _draw_bar(axes: Axes, place: float, width: float, seeds: Floats, color: str) -> float:
    """Draw the mean over seeds, with a whisker if there are several; return its top."""
    found = estimate(seeds.tolist())
    axes.bar(place, found.mean, width=width, color=color)
    if (half := found.half()) is not None:
        low = min(found.mean, half)  # nothing below 0 is drawn
        axes.errorbar(place, found.mean, yerr=[[low], [half]], color=LINE_COLOR, linewidth=1.0, capsize=2.5)
    return found.mean + (half or 0.0)


def _slant(labels: list[str]) -> dict[str, Any]:
    """Return how to write the groups' names: slanted where they would overlap."""
    room = drawn_width(WIDTH_INCHES) / len(labels) / 0.08  # letters of 8 point text
    return {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if max(map(len, labels)) > room else {}


def from_zero(axes: Axes, top: float, *, integer: bool = False) -> None:
    """Let the vertical axis begin at 0 and reach `top`, with grid lines."""
    axes.set_ylim(0, 1.06 * top or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=integer))
    axes.grid(visible=True, axis="y")
