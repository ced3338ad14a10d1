"""The map of a network: where clients and aggregators are, and which belong together."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from atoll.report.figures.before_training import MANY_BARS
from atoll.report.figures.style import PALETTE, STYLE, lay_out_legend, new_figure
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

MAP_INCHES = 6.2
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
TRIANGLES = {"^": -2.2, "v": 2.2}  # points by which a number is shifted from the middle to where it fits
MAX_NUMBERED = 25  # aggregators beyond which numbers would hide the clients
COLORS = to_rgba_array(PALETTE)
DARK = to_rgba_array("#222222")
LINK_COLOR = "#999999"
LINK_DASHES = (0, (4, 3))
LEFT_OUT_COLOR = "#888888"
LUMINANCE = np.array([0.21, 0.72, 0.07])  # of red, green and blue


def plot_map(
    clients_xy: ArrayLike,
    aggregators_xy: ArrayLike,
    labels: ArrayLike,
    server_xy: ArrayLike | None = None,
    neighbours: Sequence[Sequence[int]] | None = None,
    title: str = "",
    ids: bool = False,
) -> Figure:
    """Draw clients and aggregators in the colour and shape of their cluster, each client tied to its aggregator.

    No two of up to 49 clusters share both colour and shape, and nearby aggregators differ in colour. Aggregators are
    numbered if there are at most 25, or with `ids`, which numbers the clients too; they are hollow without clients,
    and joined to their neighbours by dashed lines.

    `clients_xy` is [clients, 2], `aggregators_xy` [aggregators, 2] and `server_xy` [2], in metres. `labels` is
    [clients], each client's aggregator, or -1 for a client left out, drawn grey. `neighbours` lists, for each
    aggregator, those it exchanges models with. Raises InputError for wrong shapes, positions that are not
    finite, and labels or neighbours that are not aggregators.
    """
    with mpl.rc_context(STYLE):
        figure = new_figure(MAP_INCHES + 0.5, MAP_INCHES)
        axes = figure.subplots()
        handles = draw_map(axes, clients_xy, aggregators_xy, labels, server_xy, neighbours, title, ids)
        inside = figure.get_figwidth() - 0.5
        columns, _, lines = lay_out_legend([str(handle.get_label()) for handle in handles], inside)
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        height = float(np.clip(inside * (top - bottom) / (right - left), 0.8, 9.0))
        figure.set_figheight(height + 0.75 + 0.2 * lines)  # title and labels, legend
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def draw_map(
    ax: Axes,
    clients_xy: ArrayLike,
    aggregators_xy: ArrayLike,
    labels: ArrayLike,
    server_xy: ArrayLike | None = None,
    neighbours: Sequence[Sequence[int]] | None = None,
    title: str = "",
    ids: bool = False,
) -> list[Line2D]:
    """Draw a network into given axes, as `plot_map` does; return the legend's entries."""
    clients = as_finite(clients_xy, "clients_xy", "[clients, 2]", (2,), 2)
    aggregators = as_finite(aggregators_xy, "aggregators_xy", "[aggregators, 2]", (2,), 2)
    server = None if server_xy is None else as_finite(server_xy, "server_xy", "[2]", last=2)
    owners = _as_labels(labels, len(clients), len(aggregators))
    links = _as_links(neighbours, len(aggregators))
    points = np.concatenate([clients, aggregators, *([] if server is None else [server[None]])])
    margin = 0.04 * float(np.ptp(points, axis=0).max()) or 1.0
    low, high = points.min(axis=0) - margin, points.max(axis=0) + margin
    ax.set(aspect="equal", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    ax.set(xlabel="x (metres)", ylabel="y (metres)", title=title)
    if len(links):
        style: Any = {"colors": LINK_COLOR, "linewidths": 0.9, "linestyles": [LINK_DASHES]}
        ax.add_collection(LineCollection(list(aggregators[links]), zorder=1, **style), autolim=False)
    _draw_clusters(ax, clients, aggregators, owners, numbered=ids or len(aggregators) <= MAX_NUMBERED)
    if ids:
        for client, xy in enumerate(clients):
            small: Any = {"fontsize": 5.5, "color": "#444444", "zorder": 7, "clip_on": True}
            ax.annotate(str(client), (xy[0], xy[1]), (2.5, 2.5), textcoords="offset points", **small)
    if server is not None:
        ax.scatter(server[0], server[1], s=260, marker="*", color="black", edgecolors="white", zorder=6)
    return _handles(owners, len(aggregators), with_server=server is not None, with_links=bool(len(links)))


def as_finite(
    values: ArrayLike, name: str, shape: str, dimensions: Sequence[int] = (1,), last: int | None = None
) -> Floats:
    """Return the values as an array of finite numbers; `name` and `shape` are for the messages.

    Raises InputError for an empty array, for a number of dimensions not in `dimensions`, for a last dimension other
    than `last`, and for values that are not finite numbers.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers of shape {shape}") from None
    if not array.size or array.ndim not in dimensions or last not in (None, array.shape[-1]):
        raise InputError(f"{name} must be of shape {shape} and not empty, but its shape is {array.shape}")
    wrong = np.argwhere(~np.isfinite(array))
    if wrong.size:
        raise InputError(f"{name}{wrong[0].tolist()} = {array[tuple(wrong[0])]}: must be a finite number")
    return array


def cluster_styles(aggregators_xy: Floats) -> tuple[Ids, Ids]:
    """Return each cluster's colour and marker, as indices into PALETTE and MARKERS, [aggregators] each.

    Each aggregator in turn takes the colour whose nearest use so far is farthest, and the next marker of that
    colour: nearby clusters differ in colour, and no pair repeats before all are used.
    """
    nearest = np.full((len(PALETTE), len(aggregators_xy)), np.inf)  # squared distance to the nearest use of each colour
    used = np.zeros(len(PALETTE), dtype=np.int64)
    colors, markers = np.empty((2, len(aggregators_xy)), dtype=np.int64)
    for index, xy in enumerate(aggregators_xy):
        color = min(range(len(PALETTE)), key=lambda c: (used[c] // len(MARKERS), -nearest[c, index], used[c]))
        colors[index], markers[index] = color, used[color] % len(MARKERS)
        used[color] += 1
        nearest[color] = np.minimum(nearest[color], ((aggregators_xy - xy) ** 2).sum(axis=1))
    return colors, markers


def _as_labels(labels: ArrayLike, clients: int, aggregators: int) -> Ids:
    owners = np.asarray(labels)
    if owners.shape != (clients,) or not np.issubdtype(owners.dtype, np.integer):
        raise InputError(f"labels must be {clients} whole numbers, one a client, not {owners.dtype} {owners.shape}")
    wrong = np.flatnonzero((owners < -1) | (owners >= aggregators))
    if wrong.size:
        raise InputError(
            f"labels[{wrong[0]}] = {owners[wrong[0]]}: must be an aggregator from 0 to {aggregators - 1}, "
            "or -1 for a client left out"
        )
    return owners.astype(np.int64)


def _as_links(neighbours: Sequence[Sequence[int]] | None, aggregators: int) -> Ids:
    """Return each link once, as [links, 2]."""
    if neighbours is None:
        return np.empty((0, 2), dtype=np.int64)
    if len(neighbours) != aggregators:
        raise InputError(f"neighbours has {len(neighbours)} entries, but there are {aggregators} aggregators")
    pairs = {(min(pair), max(pair)) for j, others in enumerate(neighbours) for pair in ((j, k) for k in others)}
    for low, high in sorted(pairs):
        if low < 0 or high >= aggregators or low == high:
            raise InputError(f"neighbours: {low} and {high} must be two aggregators from 0 to {aggregators - 1}")
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _draw_clusters(axes: Axes, clients: Floats, aggregators: Floats, owners: Ids, *, numbered: bool) -> None:
    colors, markers = cluster_styles(aggregators)
    member = owners >= 0
    many = len(clients) > MANY_BARS
    crowd = float(np.clip(len(clients) / 100, 1.0, 8.0))
    tints, shapes = COLORS[colors[owners[member]]], markers[owners[member]]
    spokes = np.stack([clients[member], aggregators[owners[member]]], axis=1)
    width = 0.8 / crowd**0.5
    axes.add_collection(LineCollection(list(spokes), colors=tints, linewidths=width, alpha=0.5, rasterized=many), False)
    dots: Any = {"s": 26 / crowd, "edgecolors": "white", "linewidths": 0.4 / crowd, "zorder": 3, "rasterized": many}
    _scatter(axes, clients[member], shapes, {"c": tints}, dots)
    left_out: Any = {"s": 26 / crowd, "marker": "x", "color": LEFT_OUT_COLOR, "linewidths": 1.0, "rasterized": many}
    axes.scatter(clients[~member, 0], clients[~member, 1], **left_out)
    filled = np.isin(np.arange(len(aggregators)), owners)[:, None]
    faces, edges = np.where(filled, COLORS[colors], 1.0), np.where(filled, DARK, COLORS[colors])
    area = float(np.clip(3000 / len(aggregators), 42.0, 170.0))
    areas = area * np.where(np.isin(np.array(MARKERS)[markers], list(TRIANGLES)), 1.4, 1.0)
    looks = {"s": areas, "c": faces, "edgecolors": edges}
    _scatter(axes, aggregators, markers, looks, {"linewidths": 1.1, "zorder": 4})
    if numbered:
        _number(axes, aggregators, markers, faces)


def _scatter(axes: Axes, points: Floats, shapes: Ids, each: dict[str, Floats], common: Any) -> None:
    """Draw points of several shapes; `each` holds the properties that differ between points."""
    for shape in np.unique(shapes):
        own = shapes == shape
        style: Any = common | {name: values[own] for name, values in each.items()}
        axes.scatter(points[own, 0], points[own, 1], marker=MARKERS[shape], **style)


def _number(axes: Axes, aggregators: Floats, markers: Ids, faces: Floats) -> None:
    style: Any = {"fontsize": 6.5, "fontweight": "bold", "ha": "center", "va": "center_baseline", "zorder": 5}
    for index, xy in enumerate(aggregators):
        color = "black" if faces[index, :3] @ LUMINANCE > 0.45 else "white"
        shift = TRIANGLES.get(MARKERS[markers[index]], 0.0)
        axes.annotate(str(index), tuple(xy), (0, shift), textcoords="offset points", color=color, **style)


def _handles(owners: Ids, aggregators: int, *, with_server: bool, with_links: bool) -> list[Line2D]:
    """Return legend entries for the kinds of marker; colours need none, since lines join each cluster."""
    grey: Any = {"linestyle": "", "color": "#666666", "markeredgecolor": "#222222", "marker": "o"}
    hollow: Any = grey | {"markerfacecolor": "white", "markeredgecolor": "#666666"}
    filled = len(np.unique(owners[owners >= 0]))
    entries: list[tuple[bool, str, Any]] = [
        (filled > 0, "Client", grey | {"markersize": 5, "markeredgecolor": "white"}),
        (bool((owners < 0).any()), "Client left out", {"linestyle": "", "marker": "x", "color": LEFT_OUT_COLOR}),
        (filled > 0, "Aggregator", grey | {"markersize": 10}),
        (filled < aggregators, "Empty aggregator", hollow | {"markersize": 10}),
        (with_server, "Server", {"linestyle": "", "marker": "*", "color": "black", "markersize": 13}),
        (with_links, "Neighbours", {"linestyle": LINK_DASHES, "color": LINK_COLOR, "linewidth": 0.9}),
    ]
    return [Line2D([], [], label=label, **style) for wanted, label, style in entries if wanted]
