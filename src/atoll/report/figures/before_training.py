"""Figures of what is known before training: class shares, clusters and the schedule."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import Formatter, MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike

from atoll.report.figures.style import BLUE, PALE_BLUE, STYLE, WIDTH_INCHES, add_legend, new_figure, strip_frame
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.units import format_count, time_unit

Bar: TypeAlias = tuple[int, float, float, int]
"""A cluster's work in one event: cluster, start and end in seconds, round."""

WAITING: Any = {"facecolor": "#f2f2f2", "edgecolor": "#9a9a9a", "hatch": "////", "linewidth": 0.4}
CHANGE: Any = {"color": "black", "linestyle": ":", "linewidth": 1.2}
MAX_CLIENTS = 60
MANY_BARS = 2000  # beyond this an SVG holds the bars as an image, so that browsers still open it quickly


def draw_shares(
    ax: Axes, class_counts: ArrayLike, title: str = "", label: str = "Share of the client's samples"
) -> None:
    """Draw the share of each class in each client's samples as a heatmap, clients across and classes down.

    `class_counts` is [clients, classes], whole numbers. Of more than 60 clients, 60 at even spacing are
    drawn, and the title says so. Raises InputError unless there is at least one client and one class.
    """
    counts = _as_table(class_counts, "class_counts", "clients")
    clients = len(counts)
    drawn = evenly(clients, MAX_CLIENTS)
    if clients > MAX_CLIENTS:
        title = f"{title} ({MAX_CLIENTS} of {clients:,} clients)".strip()
    shares = counts[drawn] / np.maximum(counts[drawn].sum(axis=1, keepdims=True), 1)
    _draw_heatmap(ax, shares, label)
    set_client_ticks(ax, drawn)
    ax.set(xlabel="Client", title=title)


def plot_clusters(sizes: ArrayLike, class_shares: ArrayLike, title: str = "") -> Figure:
    """Draw each cluster's size as a bar above its class shares as a column of a heatmap.

    `sizes` is [clusters], in clients; `class_shares` is [clusters, classes], each between 0 and 1. Raises
    InputError when they disagree on the number of clusters or there is none.
    """
    shares = _as_table(class_shares, "class_shares", "clusters")
    bars = np.asarray(sizes)
    if bars.shape != shares.shape[:1]:
        raise InputError(f"sizes has shape {bars.shape}, but class_shares describes {len(shares)} clusters")
    height = float(np.clip(0.24 * shares.shape[1], 1.2, 5.0))
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, height + 2.2)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, height])
        draw_sizes(top, bars, "Clients", title)
        draw_cluster_shares(bottom, shares)
        figure.align_ylabels()
    return figure


def draw_sizes(ax: Axes, sizes: ArrayLike, y_label: str, title: str) -> None:
    """Draw sizes as bars that stand above the columns of a heatmap, whose labels they share."""
    bars = np.asarray(sizes)
    ax.bar(np.arange(len(bars)), bars, width=0.8, color=BLUE)
    ax.set_xlim(-0.5, len(bars) - 0.5)
    ax.grid(visible=True, axis="y")
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.yaxis.set_major_formatter(format_count)
    ax.tick_params(axis="x", length=0, labelbottom=False)
    ax.set(ylabel=y_label, title=title)


def draw_cluster_shares(ax: Axes, class_shares: ArrayLike, title: str = "") -> None:
    """Draw each cluster's class shares, [clusters, classes], as a column of a heatmap into given axes."""
    shares = _as_table(class_shares, "class_shares", "clusters")
    _draw_heatmap(ax, shares, "Share of samples")
    ax.set_xticks(index_ticks(len(shares), 20))
    ax.set(xlabel="Cluster", title=title)


def plot_gantt(
    events: Sequence[Bar], title: str = "", done: ArrayLike | None = None, changes: Sequence[float] = ()
) -> Figure:
    """Draw who trains when: a line for each cluster, a bar for each event, in shades that alternate between rounds.

    An event is (cluster, start seconds, end seconds, round). `done`, [events], is when each event's own work ended:
    from then to the event's end the cluster waits for the others, and the bar is hatched. A line marks each of the
    seconds at which clients' data change. Bars are at least 0.3 % of the total time long, where the cluster's next
    event leaves room. 10,000 events and 100 clusters are no problem. Raises InputError without events, for a negative
    cluster, for an event that ends before it starts, and for work that ends outside its event.
    """
    table = _as_events(events)
    rows = int(table[:, 0].max()) + 1
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, float(np.clip(0.25 * rows + 1.1, 2.0, 6.5)))
        ax = figure.subplots()
        legend: list[Artist] = [*draw_gantt(ax, events, title, done)]
        unit = time_unit(float(table[:, 2].max()))
        lines: list[Artist] = [ax.axvline(at / unit.seconds, label="Clients' data change", **CHANGE) for at in changes]
        add_legend(figure, legend + lines[:1])
    return figure


def draw_gantt(ax: Axes, events: Sequence[Bar], title: str = "", done: ArrayLike | None = None) -> list[Patch]:
    """Draw who trains when into given axes, as `plot_gantt` does; return the legend's entries."""
    table = _as_events(events)
    clusters, starts, ends = table[:, 0], table[:, 1], table[:, 2]
    worked = _as_done(done, starts, ends)
    unit = time_unit(float(ends.max()))
    narrowest = 0.003 * (float(ends.max()) or 1.0)  # seconds of work in a day would be invisible
    shown = np.maximum(worked, np.minimum(starts + narrowest, _next_starts(clusters, starts)))
    rows = int(clusters.max()) + 1
    bars = PolyCollection(
        list(_rectangles(starts / unit.seconds, shown / unit.seconds, clusters, 0.78)),
        facecolors=np.array([BLUE, PALE_BLUE])[_turns(clusters, table[:, 3]) % 2].tolist(),
        edgecolors="white",
        linewidths=0.5 if len(table) <= 300 and (ends - starts).min() > narrowest else 0.0,
        rasterized=len(table) > MANY_BARS,
    )
    ax.add_collection(bars)
    if (waits := ends > shown).any():
        waiting = _rectangles(shown[waits] / unit.seconds, ends[waits] / unit.seconds, clusters[waits], 0.78)
        ax.add_collection(PolyCollection(list(waiting), rasterized=len(table) > MANY_BARS, **WAITING))
    ax.set_xlim(min(0.0, starts.min() / unit.seconds), max(shown.max(), ends.max()) / unit.seconds)
    ax.set_ylim(rows - 0.4, -0.6)
    ax.set_yticks(index_ticks(rows, 20))
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=True, axis="x")
    ax.set(xlabel=f"Virtual time ({unit.name})", ylabel="Cluster", title=title)
    works = [Patch(color=BLUE, label="Training"), Patch(color=PALE_BLUE, label="Training (alternate rounds)")]
    return [*works, *([Patch(label="Waiting for the slowest", **WAITING)] if waits.any() else [])]


def _as_table(values: ArrayLike, name: str, rows: str) -> Floats:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise InputError(f"{name} must be [{rows}, classes] with at least one of each, not of shape {table.shape}")
    return table


def _as_events(events: Sequence[Bar]) -> Floats:
    if not len(events):
        raise InputError("There is nothing to draw: the schedule has no events")
    table = np.asarray(events, dtype=np.float64)
    if (table[:, 0] < 0).any():
        raise InputError(f"Clusters are counted from 0, but an event names cluster {int(table[:, 0].min())}")
    backwards = np.flatnonzero(table[:, 2] < table[:, 1])
    if backwards.size:
        raise InputError(f"Event {backwards[0]} ends before it starts")
    return table


def _as_done(done: ArrayLike | None, starts: Floats, ends: Floats) -> Floats:
    if done is None:
        return ends
    worked = np.asarray(done, dtype=np.float64)
    if worked.shape != ends.shape:
        raise InputError(f"done has shape {worked.shape}, but there are {len(ends)} events")
    wrong = np.flatnonzero(~((starts <= worked) & (worked <= ends * (1 + 1e-9))))
    if wrong.size:
        raise InputError(f"done[{wrong[0]}] = {worked[wrong[0]]:g}: must lie between the event's start and its end")
    return np.minimum(worked, ends)


def _next_starts(clusters: Floats, starts: Floats) -> Floats:
    """Return when the same cluster's next event starts, inf after its last one, [events]."""
    order = np.lexsort((starts, clusters))
    following = np.append(starts[order][1:], np.inf)
    following[np.flatnonzero(np.diff(clusters[order]))] = np.inf
    result = np.empty(len(starts))
    result[order] = following
    return result


def _turns(clusters: Floats, rounds: Floats) -> Ids:
    """Return the place of each event's round among those of its cluster, from 0, [events].

    Round numbers may have gaps, and an asynchronous cluster skips most of them, so odd and even numbers need not
    alternate.
    """
    pairs, index = np.unique(np.stack([clusters, rounds]), axis=1, return_inverse=True)
    first = np.searchsorted(pairs[0], pairs[0])
    counted: Ids = np.arange(pairs.shape[1]) - first
    return counted[index.reshape(-1)]


def _rectangles(lefts: Floats, rights: Floats, centres: Floats, height: float) -> Floats:
    """Return the corners of all bars at once, [bars, 4, 2]."""
    tops, bottoms = centres - height / 2, centres + height / 2
    x = np.stack([lefts, rights, rights, lefts], axis=1)
    y = np.stack([tops, tops, bottoms, bottoms], axis=1)
    return np.stack([x, y], axis=2)


def _draw_heatmap(axes: Axes, shares: Floats, label: str) -> None:
    """Draw [columns, classes] with classes downwards, and a labelled bar; the darkest colour is the largest share."""
    most = shares.max() or 1.0
    image = axes.imshow(shares.T, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0.0, vmax=most)
    axes.set_yticks(index_ticks(shares.shape[1], 20))
    axes.set_ylabel("Class")
    strip_frame(axes)
    add_colorbar(image, label, PercentFormatter(1.0, decimals=None))


def add_colorbar(image: AxesImage, label: str, form: Formatter | None = None) -> None:
    """Draw a bar of an image's colours beside its axes."""
    figure = image.get_figure(root=True)
    assert figure is not None, "an image is drawn into axes, which have a figure"
    bar = figure.colorbar(image, ax=image.axes, label=label, pad=0.02, format=form)
    strip_frame(bar.ax)


def set_client_ticks(ax: Axes, drawn: Ids) -> None:
    """Label about ten of the clients drawn, from left to right, by their numbers."""
    ticks = range(0, len(drawn), max(1, len(drawn) // 10))
    ax.set_xticks(ticks, [str(drawn[tick]) for tick in ticks])


def evenly(count: int, most: int) -> Ids:
    """Return at most `most` indices below `count`, evenly spaced, the first and the last among them."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def index_ticks(count: int, most: int) -> list[int]:
    """Return about `most` indices to label at most: all, or every fifth, tenth, ..."""
    step = next((step for step in (1, 5, 10, 50, 100) if count <= step * most), count)
    return list(range(0, count, step))
