"""Bars and points that compare clusterings: completion times, EMD, and size against frequency or links."""

import math
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from scipy.stats import spearmanr

from atoll.report.figures import index_ticks
from atoll.report.network import as_finite
from atoll.report.style import BLUE, PALETTE, STYLE, WIDTH_INCHES, legend_columns, time_unit
from atoll.support.arrays import Floats
from atoll.support.errors import InputError

OVER_COLOR = PALETTE[1]
LINE_COLOR = "#333333"
EMPTY_COLOR = "#888888"
MAX_WRITTEN = 24  # bars beyond which there is no room for their values
MAX_COLUMNS = 2  # panels side by side: there must be room for their titles
MAX_STEPS = 12  # different x beyond which points are no longer read as columns
STEPS = [1, 2, 2.5, 5, 10]


def plot_completion(completion_seconds: ArrayLike, limit_seconds: ArrayLike | None = None, title: str = "") -> Figure:
    """Draw each aggregator's completion time as a bar, and its limit as a line.

    `completion_seconds` is [aggregators]; 0 is an aggregator without clients, marked by a cross. `limit_seconds`
    is one limit for all or [aggregators]; inf is no limit. Bars over their limit have another colour. Raises
    InputError for negative or missing times, and where the two disagree on the number of aggregators.
    """
    seconds = _not_negative(as_finite(completion_seconds, "completion_seconds", "[aggregators]"), "completion_seconds")
    limits = _as_limits(limit_seconds, len(seconds))
    bounded = np.isfinite(limits)
    over = seconds > limits * (1 + 1e-9)
    unit = time_unit(float(np.concatenate([seconds, limits[bounded]]).max()))
    places = np.arange(len(seconds))
    empty = seconds == 0
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.bar(places, seconds / unit.seconds, width=0.8, color=np.where(over, OVER_COLOR, BLUE).tolist())
        ends = places[bounded] - 0.5, places[bounded] + 0.5
        axes.hlines(limits[bounded] / unit.seconds, *ends, color=LINE_COLOR, linewidth=1.4, capstyle="projecting")
        axes.set_xticks(index_ticks(len(seconds), 25))
        axes.set(xlabel="Aggregator", ylabel=f"Completion ({unit.name})", title=title)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.6, len(seconds) - 0.4)
        _from_zero(axes, max(seconds.max(), limits[bounded].max(initial=0.0)) / unit.seconds)
        crosses = np.full(np.count_nonzero(empty), 0.03 * axes.get_ylim()[1])
        axes.scatter(places[empty], crosses, s=24, marker="x", color=EMPTY_COLOR)
        entries = [
            ((~over & ~empty).any() and bounded.any(), Patch(color=BLUE, label="Within the limit")),
            (over.any(), Patch(color=OVER_COLOR, label="Over the limit")),
            (bounded.any(), Line2D([], [], color=LINE_COLOR, linewidth=1.4, label="Limit")),
            (empty.any(), Line2D([], [], linestyle="", marker="x", color=EMPTY_COLOR, label="No clients")),
        ]
        _add_legend(figure, [handle for wanted, handle in entries if wanted])
    return figure


def plot_bars(
    values: Mapping[str, Mapping[str, float | ArrayLike]], y_label: str, title: str = "", group_label: str = ""
) -> Figure:
    """Draw groups of bars side by side, as FedUC's figures 5 (mean EMD) and 6 (largest completion) do.

    `values[group][series]` is a number, or one number a seed: then the bar is their mean and the whisker their
    sample standard deviation. A series, say a clustering, has one colour in all groups, say patterns; a group may
    lack a series. The vertical axis begins at 0. Raises InputError for no values, and for negative or missing ones.
    """
    table = {
        (group, name): _not_negative(as_finite(np.atleast_1d(value), where, "[seeds]"), where)
        for group, row in values.items()
        for name, value in row.items()
        for where in [f"values[{group!r}][{name!r}]"]
    }
    if not table:
        raise InputError("There is nothing to draw: values has no bars.")
    names = list(dict.fromkeys(name for _, name in table))
    width = 0.8 / len(names)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 3.6), layout="constrained")
        axes = figure.subplots()
        tops = []
        for (group, name), seeds in table.items():
            index = names.index(name)
            place = list(values).index(group) + (index - (len(names) - 1) / 2) * width
            tops.append(_draw_bar(axes, place, 0.92 * width, seeds, PALETTE[index % len(PALETTE)]))
            if len(table) <= MAX_WRITTEN:
                text = f"{seeds.mean():#.3g}" if seeds.mean() < 99.95 else f"{seeds.mean():,.0f}"
                axes.annotate(text, (place, tops[-1]), (0, 2), textcoords="offset points", ha="center", fontsize=7.5)
        axes.set_xticks(range(len(values)), list(values), **_slant(list(values)))
        axes.tick_params(axis="x", length=0)
        axes.set(xlim=(-0.55, len(values) - 0.45), ylabel=y_label, title=title)
        axes.set_xlabel("\n".join(filter(None, (group_label, _seeds_note([len(seeds) for seeds in table.values()])))))
        _from_zero(axes, 1.05 * max(tops))
        _add_legend(figure, [Patch(color=PALETTE[i % len(PALETTE)], label=name) for i, name in enumerate(names)])
    return figure


def plot_size_against(
    x: ArrayLike | Mapping[str, ArrayLike], sizes: ArrayLike | Mapping[str, ArrayLike], x_label: str, title: str = ""
) -> Figure:
    """Draw how many clients aggregators have against their frequency or links, as FedUC's figures 7 and 8 do.

    `x` and `sizes` are [aggregators], or [seeds, aggregators] to draw the aggregators of all seeds; or mappings from
    each panel's name to such. Every panel tells Spearman's rank correlation, for seeds the mean and the range of each
    one's own. Where `x` takes few values, well apart, equal points stand side by side and a line marks each column's
    mean; otherwise the line is the least squares one. Values of `x` that agree to nine digits are equal. An aggregator
    whose `x` is 0 takes no part, as one without clients has no frequency, and is left out. Raises InputError where
    panels or shapes disagree, and for values that are missing or negative sizes.
    """
    panels = _as_panels(x, sizes)
    columns = math.ceil(len(panels) / math.ceil(len(panels) / MAX_COLUMNS))
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(STYLE):
        size = (5.0 if len(panels) == 1 else WIDTH_INCHES, 0.5 + 3.0 * rows)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        kinds = {_draw_panel(axes, name, *pair) for axes, (name, pair) in zip(grid.flat, panels.items(), strict=False)}
        top = max(float(pair[1].max()) for pair in panels.values())
        _from_zero(grid[0, 0], top, integer=True)
        grid[0, 0].set_ylim(-0.04 * top, 1.06 * top or 1.0)  # room for the points of empty aggregators
        for position, axes in enumerate(grid.flat):
            if position >= len(panels):
                axes.remove()
            else:
                axes.set(xlabel=x_label, ylabel="" if position % columns else "Clients")
        figure.suptitle(title, fontsize=10.5, fontweight="bold")
        _add_legend(figure, [Line2D([], [], color=LINE_COLOR, linewidth=1.2, label=" or ".join(sorted(kinds)))])
    return figure


def rank_correlation(x: Floats, sizes: Floats) -> float | None:
    """Return Spearman's rank correlation over nonzero x, or None where either has only one value and so no ranks.

    >>> rank_correlation(np.array([0.1, 0.2, 0.0, 0.4]), np.array([2.0, 3.0, 0.0, 9.0]))
    1.0
    """
    x, sizes = x[x != 0], sizes[x != 0]
    if min(len(np.unique(x)), len(np.unique(sizes))) < 2:
        return None
    return float(spearmanr(x, sizes).statistic)


def _not_negative(array: Floats, name: str) -> Floats:
    wrong = np.argwhere(array < 0)
    if wrong.size:
        raise InputError(f"{name}{wrong[0].tolist()} = {array[tuple(wrong[0])]:g}: must not be negative.")
    return array


def _as_limits(limit_seconds: ArrayLike | None, aggregators: int) -> Floats:
    """Return a limit for every aggregator, inf where there is none."""
    limits = np.asarray(np.inf if limit_seconds is None else limit_seconds, dtype=np.float64)
    if limits.shape not in ((), (aggregators,)):
        raise InputError(f"limit_seconds has shape {limits.shape}, but there are {aggregators} aggregators.")
    if not (limits > 0).all():
        raise InputError(f"limit_seconds = {limits.tolist()}: every limit must be positive.")
    return np.broadcast_to(limits, (aggregators,))


def _as_panels(
    x: ArrayLike | Mapping[str, ArrayLike], sizes: ArrayLike | Mapping[str, ArrayLike]
) -> dict[str, tuple[Floats, Floats]]:
    """Return each panel's x and sizes as [seeds, aggregators]."""
    across: Mapping[str, ArrayLike] = x if isinstance(x, Mapping) else {"": x}
    upwards: Mapping[str, ArrayLike] = sizes if isinstance(sizes, Mapping) else {"": sizes}
    if not across or across.keys() != upwards.keys():
        raise InputError(
            f"x has the panels {list(across)} and sizes {list(upwards)}: they must be the same, at least one."
        )
    panels = {}
    for name in across:
        shape = "[aggregators] or [seeds, aggregators]"
        known = np.atleast_2d(as_finite(across[name], "x", shape, (1, 2)))
        clients = np.atleast_2d(_not_negative(as_finite(upwards[name], "sizes", shape, (1, 2)), "sizes"))
        if known.shape != clients.shape:
            where = f" of {name}" if name else ""
            raise InputError(f"x and sizes{where} must be of one shape, not {known.shape} and {clients.shape}.")
        scale = float(np.abs(known).max()) or 1.0
        panels[name] = np.round(known / scale, 9) * scale, clients  # what differs by rounding alone is a tie
    return panels


def _draw_bar(axes: Axes, place: float, width: float, seeds: Floats, color: str) -> float:
    """Draw the mean of the seeds, and a whisker where there are several; return where it ends."""
    mean, deviation = float(seeds.mean()), float(seeds.std(ddof=1)) if len(seeds) > 1 else 0.0
    axes.bar(place, mean, width=width, color=color)
    if len(seeds) > 1:
        low = min(mean, deviation)  # nothing below 0 is drawn
        axes.errorbar(place, mean, yerr=[[low], [deviation]], color=LINE_COLOR, linewidth=1.0, capsize=2.5)
    return mean + deviation


def _slant(labels: list[str]) -> dict[str, Any]:
    """Return how to write the groups' names: aslant where they would run into each other."""
    room = WIDTH_INCHES / len(labels) / 0.08  # letters of 8 point text
    return {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if max(map(len, labels)) > room else {}


def _seeds_note(counts: list[int]) -> str:
    if max(counts) == 1:
        return ""
    number = f"{max(counts)} " if min(counts) == max(counts) else ""
    return f"Mean and standard deviation over {number}seeds"


def _draw_panel(axes: Axes, name: str, x: Floats, sizes: Floats) -> str:
    """Draw the points of all seeds and their line; return what the line is."""
    axes.grid(visible=True)
    axes.set_title(name, pad=18)
    axes.text(0.5, 1.025, _correlation_text(x, sizes), transform=axes.transAxes, ha="center", va="bottom", fontsize=8.5)
    flat_x, flat_sizes = x[x != 0], sizes[x != 0]
    if not len(flat_x):
        return "Mean"
    steps = np.unique(flat_x)
    points: dict[str, Any] = {
        "s": 26,
        "color": BLUE,
        "edgecolors": "white",
        "linewidths": 0.4,
        "alpha": 0.8,
        "zorder": 2,
    }
    line: dict[str, Any] = {"color": LINE_COLOR, "linewidth": 1.2, "zorder": 1}
    gap = float(np.diff(steps).min()) if len(steps) > 1 else float(abs(steps[0])) or 1.0
    apart = 2 * gap * (len(steps) - 1) >= steps[-1] - steps[0]  # at least half of what they would be if spaced evenly
    if len(steps) == 1 or (apart and len(steps) <= MAX_STEPS and 2 * len(steps) <= len(flat_x)):
        axes.scatter(flat_x + _side_by_side(flat_x, flat_sizes, gap), flat_sizes, **points)
        means = np.array([flat_sizes[flat_x == step].mean() for step in steps])
        axes.hlines(means, steps - 0.42 * gap, steps + 0.42 * gap, **line)
        axes.set_xticks(steps, [f"{step:.3g}" for step in steps])
        axes.set_xlim(steps[0] - 0.6 * gap, steps[-1] + 0.6 * gap)
        return "Mean"
    axes.scatter(flat_x, flat_sizes, **(points | {"alpha": 0.5}))  # darker where several coincide
    ends = steps[[0, -1]]
    axes.plot(ends, np.polyval(np.polyfit(flat_x, flat_sizes, 1), ends), **line)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
    return "Least squares line"


def _correlation_text(x: Floats, sizes: Floats) -> str:
    known = [value for value in map(rank_correlation, x, sizes) if value is not None]
    if not known:
        return "no rank correlation: all values are equal"
    mean, low, high = (f"{value:z.2f}" for value in (np.mean(known), min(known), max(known)))
    seeds = f" ({low} to {high} over {len(known)} seeds)" if len(x) > 1 else ""
    return f"rank correlation {mean}{seeds}".replace("-", "−")


def _side_by_side(x: Floats, sizes: Floats, gap: float) -> Floats:
    """Return how far to shift each point so that equal ones stand side by side within their column."""
    _, group, count = np.unique(np.stack([x, sizes]), axis=1, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(x))
    rank[order] = np.arange(len(x)) - np.repeat(np.cumsum(count) - count, count)
    return (rank - (count[group] - 1) / 2) * min(0.09 * gap, 0.84 * gap / float(count.max()))


def _from_zero(axes: Axes, top: float, *, integer: bool = False) -> None:
    axes.set_ylim(0, 1.06 * top or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS, integer=integer))
    axes.grid(visible=True, axis="y")


def _add_legend(figure: Figure, handles: list[Any]) -> None:
    if handles:
        labels = [str(handle.get_label()) for handle in handles]
        columns = legend_columns(labels, figure.get_figwidth())
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=1.6, handleheight=0.7)
