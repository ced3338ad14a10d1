"""Figures of learned cluster assignment: which model the clients take, and how accurate it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator

from atoll.report.figures.curves import BESIDE_INCHES
from atoll.report.figures.network_map import LUMINANCE
from atoll.report.figures.style import PALETTE, STYLE, WIDTH_INCHES, add_legend, new_figure, strip_frame, use_log_scale
from atoll.report.reading.records import is_number
from atoll.report.reading.runs import Run
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.units import format_count

BAND = 0.86  # share of a group's row filled by its band
MAX_NUMBERED = 12  # models beyond which a count does not fit its cell
NO_CLIENT = np.array([0.96, 0.96, 0.96])  # the colour of an empty cell
MEAN_STYLE: Any = {"color": "#444444", "linewidth": 3.2, "solid_capstyle": "round"}


@dataclass(frozen=True, eq=False)
class Assignments:
    """The cluster assignments that a run recorded.

    Attributes:
        rounds: of the rows that have them, [rows].
        confusion: clients of each planted group that take each model, [rows, groups, models].
        names: of the groups, numbers from 0 if they have none, [groups].
    """

    rounds: Floats
    confusion: Ids
    names: tuple[str, ...]

    @property
    def shares(self) -> Floats:
        """The share of each group that takes each model, [rows, groups, models]."""
        clients = np.maximum(self.confusion.sum(axis=2, keepdims=True), 1)
        return np.asarray(self.confusion / clients, dtype=np.float64)


def has_identity(run: Run) -> bool:
    """Return whether the run has recorded which models its clients take."""
    try:
        read_assignments(run)
    except InputError:
        return False
    return True


def plot_identity(run: Run) -> Figure:
    """Draw accuracy, adjusted Rand index, the models that each planted group takes over rounds, and the last counts.

    Each model has one colour throughout; a group that has found its model is a band of one colour. The columns of the
    counts, the models, are in the order of the groups they fit best. Without accuracies the training loss is drawn
    instead; with a single group there is neither index nor table. Raises InputError for a run that has not recorded
    its cluster assignments.
    """
    identity = read_assignments(run)
    groups, models = identity.confusion.shape[1:]
    planted = groups > 1
    with mpl.rc_context(STYLE):
        band_inches = float(np.clip(0.36 * groups, 1.0 if planted else 0.7, 4.5))
        figure = new_figure(WIDTH_INCHES if planted else 5.4, band_inches + 3.6)
        above = 1 + (planted and figure.get_figwidth() < BESIDE_INCHES)  # charts of a kind, one above the other
        figure.set_figheight(above * figure.get_figheight())
        shape, heights = (2 * above, (1 + planted) // above), above * [2.0] + above * [band_inches]
        cells: Any = figure.subplots(
            *shape, squeeze=False, width_ratios=[1.6, 1][: shape[1]], height_ratios=heights
        ).reshape(2, 1 + planted)
        colors = _model_colors(models)
        has_accuracy = _draw_quality(cells[0, 0], run, colors)
        _draw_bands(cells[1, 0], identity, colors)
        for axes in cells[:, 0]:
            _set_rounds(axes, identity.rounds)
        if planted:
            _draw_index(cells[0, 1], run)
            _set_rounds(cells[0, 1], identity.rounds)
            _draw_last(cells[1, 1], identity, colors)
        handles = [Patch(color=color, label=f"Model {model}") for model, color in enumerate(colors)]
        mean = [Line2D([], [], label="Mean", **MEAN_STYLE)] if has_accuracy else []
        add_legend(figure, [*handles, *mean], handlelength=1.6, handleheight=0.7)
        figure.suptitle(" · ".join(filter(None, (run.panel, run.label))), fontsize=10.5, fontweight="bold")
    return figure


def read_assignments(run: Run) -> Assignments:
    """Return the cluster assignments that a run recorded."""
    if "confusion" not in run.tables:
        raise InputError(f"{run.folder} has not recorded which models its clients take: there is no column confusion")
    pairs = zip(run.rows["round"], run.tables["confusion"], strict=True)
    known = [(number, table) for number, table in pairs if table is not None]
    try:
        confusion = np.array([table for _, table in known], dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        confusion = np.empty(0, np.int64)
    if confusion.ndim != 3 or 0 in confusion.shape or confusion.min() < 0 or confusion.max() >= 2**31:
        raise InputError(f"{run.folder}: confusion must be [planted group][model] counts, of one shape in all rows")
    names = run.groups if len(run.groups) == confusion.shape[1] else map(str, range(confusion.shape[1]))
    return Assignments(np.array([number for number, _ in known]), confusion, tuple(names))


def _model_colors(models: int) -> list[Any]:
    """Return a colour for each model: the usual palette without its grey, used for the mean, or many from a map."""
    palette = PALETTE[:-1]
    return list(palette[:models]) if models <= len(palette) else list(mpl.colormaps["turbo"](np.linspace(0, 1, models)))


def _draw_quality(axes: Axes, run: Run, colors: Sequence[Any]) -> bool:
    """Draw each model's accuracy, thin, over their mean, thick; or the loss. Return whether it is accuracy."""
    rounds, mean = run.rows["round"], 100 * run.rows["test_accuracy"]
    axes.grid(visible=True)
    if not np.isfinite(mean).any():
        axes.set_title("Training loss", loc="left")
        loss = run.rows["train_loss"]
        _draw_line(axes, rounds, loss, **MEAN_STYLE)
        if (loss > 0).any():
            use_log_scale(axes, loss[loss > 0].min() / 1.3, loss[loss > 0].max() * 1.3)
        return False
    axes.set_title("Test accuracy (%)", loc="left")
    _draw_line(axes, rounds, mean, **MEAN_STYLE)
    rows = run.tables.get("cluster_accuracy", [])
    for model, color in enumerate(colors):
        own = [100 * row[model] if row and model < len(row) and is_number(row[model]) else np.nan for row in rows]
        if own:
            _draw_line(axes, rounds, np.array(own), color=color, linewidth=1.0)
    low, high = (value / 10 for value in axes.get_ylim())
    axes.set_ylim(max(-1.0, 10 * math.floor(low)), min(101.0, 10 * math.ceil(high)))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    return True


def _draw_line(axes: Axes, x: Floats, y: Floats, **style: Any) -> None:
    """Draw a line that breaks where values are missing, and isolated values as dots."""
    known = np.isfinite(y)
    alone = known & ~np.r_[False, known[:-1]] & ~np.r_[known[1:], False]
    axes.plot(x, y, marker="o", markersize=1.5 + 1.2 * style["linewidth"], markevery=np.flatnonzero(alone), **style)


def _draw_index(axes: Axes, run: Run) -> None:
    """Draw the adjusted Rand index, and the round since which it has been 1."""
    rounds = run.rows["round"]
    index = run.rows.get("ari", np.full(len(rounds), np.nan))
    axes.set_title("Adjusted Rand index", loc="left")
    axes.grid(visible=True)
    _draw_line(axes, rounds, index, **MEAN_STYLE | {"linewidth": 1.8})
    axes.set_ylim(min(-0.04, 1.1 * float(np.fmin.reduce(index, initial=0.0))), 1.04)
    known = np.flatnonzero(np.isfinite(index))
    missed = known[index[known] < 1 - 1e-9]
    exact = known[known > missed[-1]] if missed.size else known
    if exact.size:
        text = f"exact since round {rounds[exact[0]]:g}"
        axes.text(0.97, 0.1, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=8.5, color="#555555")


def _draw_bands(axes: Axes, identity: Assignments, colors: Sequence[Any]) -> None:
    """Draw a band for each group, its height split in each row by the models that the group's clients take."""
    edges = _edges(identity.rounds)
    tops = BAND * np.cumsum(identity.shares, axis=2)  # [rows, groups, models]
    bottoms = np.concatenate([np.zeros_like(tops[:, :, :1]), tops[:, :, :-1]], axis=2)
    for group in range(len(identity.names)):
        floor = group + BAND / 2  # y points down, so that a band is filled upwards from its lower edge
        for model, color in enumerate(colors):
            low, high = floor - bottoms[:, group, model], floor - tops[:, group, model]
            if (low > high).any():
                axes.stairs(high, edges, baseline=low, fill=True, color=color, linewidth=0)
    _set_groups(axes, identity.names)
    axes.set_title("Clients by the model they take", loc="left")
    axes.set_ylabel("Planted group" if len(identity.names) > 1 else "")


def _edges(rounds: Floats) -> Floats:
    """Return the edges between rows on the axis of rounds, halfway between neighbours, [rows + 1]."""
    if len(rounds) == 1:
        return np.array([rounds[0] - 0.5, rounds[0] + 0.5])
    middles = (rounds[1:] + rounds[:-1]) / 2
    return np.concatenate([[2 * rounds[0] - middles[0]], middles, [2 * rounds[-1] - middles[-1]]])


def _set_rounds(axes: Axes, rounds: Floats) -> None:
    edges = _edges(rounds)
    axes.set_xlim(edges[0], edges[-1])
    whole = MaxNLocator(6, steps=[1, 2, 5, 10], integer=True)
    axes.xaxis.set_major_locator(whole if len(rounds) > 1 else FixedLocator(rounds.tolist()))
    axes.xaxis.set_major_formatter(format_count)
    axes.set_xlabel("Round")


def _set_groups(axes: Axes, names: Sequence[str]) -> None:
    axes.set_ylim(len(names) - 0.5, -0.5)
    shown = range(0, len(names), -(-len(names) // 20)) if len(names) > 1 else ()
    axes.set_yticks(shown, [names[group] for group in shown])
    strip_frame(axes)


def _draw_last(axes: Axes, identity: Assignments, colors: Sequence[Any]) -> None:
    """Draw the last counts, group by model, each cell shaded in its model's colour by its share of the group."""
    order = _matched_order(identity.confusion[-1])
    shares, counts = identity.shares[-1][:, order, None], identity.confusion[-1][:, order]
    cells = shares * to_rgba_array(colors)[order, :3] + (1 - shares) * NO_CLIENT
    axes.imshow(cells, aspect="auto", interpolation="nearest")
    axes.hlines(np.arange(len(counts) - 1) + 0.5, -0.5, len(order) - 0.5, color="white", linewidth=3)
    if max(counts.shape) <= MAX_NUMBERED:
        for (group, column), count in np.ndenumerate(counts):
            color = "#aaaaaa" if not count else "white" if cells[group, column] @ LUMINANCE < 0.62 else "#222222"
            axes.text(column, group, format_count(count), ha="center", va="center", color=color, fontsize=8)
    step = -(-len(order) // 20)
    axes.set_xticks(range(0, len(order), step), [str(model) for model in order[::step]])
    for label, model in zip(axes.get_xticklabels(), order[::step], strict=True):
        label.set(color=colors[model], fontweight="bold")
    _set_groups(axes, identity.names)
    axes.set_title(f"Clients at round {identity.rounds[-1]:g}", loc="left")
    axes.set_xlabel("Model")


def _matched_order(counts: Ids) -> Ids:
    """Order the models as the groups they fit best, so that recovered clusters form a diagonal."""
    from scipy.optimize import linear_sum_assignment  # SciPy's solvers load slowly

    models = linear_sum_assignment(counts, maximize=True)[1]
    return np.concatenate([models, np.setdiff1d(np.arange(counts.shape[1]), models)])
