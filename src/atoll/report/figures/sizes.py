"""Numbers of clients of aggregators against their frequency or links, with the rank correlation."""

import math
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from atoll.report.figures.comparisons import LINE_COLOR, PATCHES, STEPS, from_zero, not_negative
from atoll.report.figures.network_map import as_finite
from atoll.report.figures.style import BLUE, STYLE, WIDTH_INCHES, add_legend, drawn_width, new_figure
from atoll.support.arrays import Floats
from atoll.support.errors import InputError

MAX_COLUMNS = 2  # panels side by side, so that their titles fit
MAX_STEPS = 12  # distinct x beyond which points are not drawn as columns


def plot_size_against(
    x: ArrayLike | Mapping[str, ArrayLike], sizes: ArrayLike | Mapping[str, ArrayLike], x_label: str, title: str = ""
) -> Figure:
    """Draw how many clients aggregators have against their frequency or links, as FedUC's figures 7 and 8 do.

    `x` and `sizes` are [aggregators], or [seeds, aggregators] to draw the aggregators of all seeds; or mappings from
    panel names to these. Each panel shows Spearman's rank correlation; over several seeds, its mean and range. If `x`
    has few values, well apart, equal points are drawn side by side and a line marks the mean of each column; otherwise
    a least-squares line is drawn. Values of `x` that agree to nine digits count as equal. Aggregators with `x` = 0
    (without clients, so without a frequency) are left out. Raises InputError if panels or shapes disagree, and for
    missing values or negative sizes.
    """
    panels = _as_panels(x, sizes)
    most = MAX_COLUMNS if drawn_width(WIDTH_INCHES) > 5 else 1
    columns = math.ceil(len(panels) / math.ceil(len(panels) / most))
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(STYLE):
        figure = new_figure(5.0 if len(panels) == 1 else WIDTH_INCHES, 0.5 + 3.0 * rows)
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        kinds = {_draw_panel(axes, name, *pair) for axes, (name, pair) in zip(grid.flat, panels.items(), strict=False)}
        _set_y(grid[0, 0], max(float(pair[1].max()) for pair in panels.values()))
        for position, axes in enumerate(grid.flat):
            if position >= len(panels):
                axes.remove()
            else:
                axes.set(xlabel=x_label, ylabel="" if position % columns else "Clients")
        figure.suptitle(title, fontsize=10.5, fontweight="bold")
        line = Line2D([], [], color=LINE_COLOR, linewidth=1.2, label=" or ".join(sorted(kinds)))
        add_legend(figure, [line], **PATCHES)
    return figure


def draw_size_against(ax: Axes, x: ArrayLike, sizes: ArrayLike, x_label: str, title: str = "") -> None:
    """Draw one panel of `plot_size_against` into given axes."""
    ((known, clients),) = _as_panels(x, sizes).values()
    _draw_panel(ax, title, known, clients)
    _set_y(ax, float(clients.max()))
    ax.set(xlabel=x_label, ylabel="Clients")


def _set_y(axes: Axes, top: float) -> None:
    from_zero(axes, top, integer=True)
    axes.set_ylim(-0.04 * top, 1.06 * top or 1.0)  # room for the points of empty aggregators


def rank_correlation(x: Floats, sizes: Floats) -> float | None:
    """Return Spearman's rank correlation over nonzero x; None if either has a single value, and so no ranks."""
    from scipy.stats import spearmanr  # loads slowly

    x, sizes = x[x != 0], sizes[x != 0]
    if min(len(np.unique(x)), len(np.unique(sizes))) < 2:
        return None
    return float(spearmanr(x, sizes).statistic)


def _as_panels(
    x: ArrayLike | Mapping[str, ArrayLike], sizes: ArrayLike | Mapping[str, ArrayLike]
) -> dict[str, tuple[Floats, Floats]]:
    """Return each panel's x and sizes as [seeds, aggregators]."""
    across: Mapping[str, ArrayLike] = x if isinstance(x, Mapping) else {"": x}
    upwards: Mapping[str, ArrayLike] = sizes if isinstance(sizes, Mapping) else {"": sizes}
    if not across or across.keys() != upwards.keys():
        told = f"x has the panels {list(across)} and sizes {list(upwards)}"
        raise InputError(f"{told}: they must be the same, at least one")
    panels = {}
    for name in across:
        shape = "[aggregators] or [seeds, aggregators]"
        known = np.atleast_2d(as_finite(across[name], "x", shape, (1, 2)))
        clients = np.atleast_2d(not_negative(as_finite(upwards[name], "sizes", shape, (1, 2)), "sizes"))
        if known.shape != clients.shape:
            where = f" of {name}" if name else ""
            raise InputError(f"x and sizes{where} must be of one shape, not {known.shape} and {clients.shape}")
        scale = float(np.abs(known).max()) or 1.0
        panels[name] = np.round(known / scale, 9) * scale, clients  # a difference by rounding alone is a tie
    return panels


def _draw_panel(axes: Axes, name: str, x: Floats, sizes: Floats) -> str:
    """Draw the points of all seeds and their line; return the kind of line."""
    axes.grid(visible=True)
    axes.set_title(name, pad=18)
    axes.text(0.5, 1.025, _correlation_text(x, sizes), transform=axes.transAxes, ha="center", va="bottom", fontsize=8.5)
    flat_x, flat_sizes = x[x != 0], sizes[x != 0]
    if not len(flat_x):
        return "Mean"
    steps = np.unique(flat_x)
    points: Any = {"s": 26, "color": BLUE, "edgecolors": "white", "linewidths": 0.4, "alpha": 0.8, "zorder": 2}
    line: Any = {"color": LINE_COLOR, "linewidth": 1.2, "zorder": 1}
    gap = float(np.diff(steps).min()) if len(steps) > 1 else float(abs(steps[0])) or 1.0
    apart = 2 * gap * (len(steps) - 1) >= steps[-1] - steps[0]  # gaps are at least half as wide as if evenly spaced
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
    return "Least-squares line"


def _correlation_text(x: Floats, sizes: Floats) -> str:
    known = [value for value in map(rank_correlation, x, sizes) if value is not None]
    if not known:
        return "no rank correlation: all values are equal"
    mean, low, high = (f"{value:z.2f}" for value in (np.mean(known), min(known), max(known)))
    seeds = f" ({low} to {high} over {len(known)} seeds)" if len(x) > 1 else ""
    return f"rank correlation {mean}{seeds}".replace("-", "−")


def _side_by_side(x: Floats, sizes: Floats, gap: float) -> Floats:
    """Return how far to shift each point so that equal ones are side by side within their column."""
    _, group, count = np.unique(np.stack([x, sizes]), axis=1, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(x))
    rank[order] = np.arange(len(x)) - np.repeat(np.cumsum(count) - count, count)
    return (rank - (count[group] - 1) / 2) * min(0.09 * gap, 0.84 * gap / float(count.max()))
