"""MkDocs hook: draws who is connected to whom in each pattern, and the turns of FedCluster and IFCA, as SVG.

Turns and connections come from the methods' own schedules.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import matplotlib as mpl
import numpy as np
from figures import INK, NAMES, PACES, SHOWN_SECONDS, as_svg, schedule_of, three_clusters
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mkdocs.structure.files import File, Files

import atoll
from atoll.clustering.feduc.problem import PATTERNS
from atoll.methods.papers.fedcluster import cycling
from atoll.methods.papers.ifca import all_together
from atoll.report.figures import plot
from atoll.report.figures.style import PALETTE, STYLE
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event, Schedule

SERVER = -1
ABOVE = (1.0, 2.15)  # where the server is drawn
TWO_ROUNDS = 40.0  # seconds of FedCluster, whose round takes 4 + 6 + 10
GROUPS = (0, 0, 1)  # the model that each of IFCA's clients takes, once they have found their clusters
CLOCK = Clock(np.array(PACES), np.zeros(3))
_TITLES = {**NAMES, "fedcluster": "FedCluster", "ifca": "IFCA"}


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the drawn files to those of the site; MkDocs calls this once per build."""
    for name, svg in drawn().items():
        files.append(File.generated(config, f"figures/{name}.svg", content=svg))
    return files


@cache  # `mkdocs serve` builds again and again
def drawn() -> dict[str, bytes]:
    """Return all figures as SVG, by name."""
    turns = ("fedcluster", "ifca")
    makers: dict[str, Callable[[], Figure]] = {f"turns-{name}": partial(timeline, name) for name in turns}
    makers |= {f"who-{name}": partial(connections, name) for name in (*PATTERNS, *turns)}
    with mpl.rc_context(STYLE):
        return {name: as_svg(make()) for name, make in makers.items()}


def schedule(name: str) -> Schedule:
    """Return slightly more of a method's schedule, for three clusters or clients, than is drawn."""
    if name in PATTERNS:
        return schedule_of(name, three_clusters())
    population = atoll.make_population(atoll.load("digits"), np.arange(30).reshape(3, 10))
    if name == "fedcluster":
        return cycling(population, atoll.Clustering(np.arange(3), 3), 3, 1.0, "reshuffled", CLOCK, 0)
    return all_together(population, 2, 3, 1.0, CLOCK, 0)


def links(name: str) -> set[tuple[int, int]]:
    """Return which clusters' models go where, as (from, to); the server is -1."""
    found = set()
    for event in schedule(name).events:
        if event.server is not None:
            found |= {(cluster, SERVER) for cluster, _ in event.server.published}
        for cluster, mix in event.starts:
            found |= {(other, cluster) for other, _ in mix.published if other != cluster}
            if mix.server:
                found.add((SERVER, cluster))
    return found


def timeline(name: str) -> Figure:
    """Draw who works when, and what merges at the end, for three that take 4, 6 and 10 s."""
    shown = TWO_ROUNDS if name == "fedcluster" else SHOWN_SECONDS
    one, above, below = {"fedcluster": ("Cluster", "Server", ""), "ifca": ("Client", "Model A", "Model B")}[name]
    events = [event for event in schedule(name).events if event.seconds <= shown]
    bars = [bar for event in events for bar in _bars(event)]
    figure = Figure(figsize=(4.6, 2.3), layout="constrained")
    axes = figure.subplots()
    plot.gantt(axes, bars, _TITLES[name])
    rows = {-1: above, **{k: f"{one} {k}" for k in range(3)}, 3: below}
    rows = {row: label for row, label in rows.items() if label}
    axes.set_yticks(list(rows), list(rows.values()))
    axes.set_xticks(np.arange(0, shown + 1, shown / 4))
    axes.set(xlim=(0, shown * 1.03), ylim=(max(rows) + 0.6, min(rows) - 0.5))
    axes.set(xlabel="Virtual time (seconds)", ylabel="")
    for event in events:
        _draw_meeting(axes, name, event)
    return figure


def _bars(event: Event) -> list[tuple[int, float, float, int]]:
    """Return the work of an event's clients, one per row: start and duration."""
    began = event.began[0]
    return [(int(client), began, began + PACES[client], event.round) for client in event.cohort]


def _draw_meeting(axes: Axes, name: str, event: Event) -> None:
    """Draw a line between all that merge at an event's end, a star where a model is made, and dots at new starts."""
    groups = [(SERVER, [*event.active, *(cluster for cluster, _ in event.starts)])]
    if name == "ifca":
        groups = [(row, [k for k in range(3) if GROUPS[k] == model]) for model, row in ((0, -1), (1, 3))]
    for row, members in groups:
        at = [event.seconds] * 2
        axes.plot(at, [min(row, *members), max(row, *members)], color=INK, linewidth=0.9, zorder=3)
        starts = [cluster for cluster, _ in event.starts] if name == "fedcluster" else members
        axes.plot([event.seconds] * len(starts), starts, "o", color=INK, markersize=4, clip_on=False, zorder=5)
        axes.plot(event.seconds, row, marker="*", markersize=11, color=INK, clip_on=False, zorder=5)


def connections(name: str) -> Figure:
    """Draw who sends models to whom: clients below, aggregators and server above; dashed: used one at a time."""
    figure = Figure(figsize=(3.6, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.6, 2.6), ylim=(-0.45, 2.45), title=_TITLES[name])
    axes.set_axis_off()
    {"fedcluster": _clusters_in_turn, "ifca": _models_of_clusters}.get(name, _aggregators)(axes, name)
    return figure


def _aggregators(axes: Axes, name: str) -> None:
    has_server = (SERVER, 0) in links(name)
    places = {k: (float(k), 1.15) for k in range(3)} | ({SERVER: ABOVE} if has_server else {1: (1.0, 1.9)})
    for first, second in sorted({tuple(sorted(link)) for link in links(name)}):
        _link(axes, places[first], places[second], one_at_a_time=name.endswith("asy"))
    for aggregator in range(3):
        for client in _clients(axes, aggregator):
            _link(axes, client, places[aggregator], pale=True)
    for number, place in places.items():
        _box(axes, place, "Server" if number == SERVER else f"Aggregator {number}")


def _clusters_in_turn(axes: Axes, name: str) -> None:
    for turn, event in enumerate(schedule(name).events[:3], 1):
        (cluster,) = event.active
        axes.text(cluster, -0.3, f"turn {turn}", ha="center", va="center", fontsize=8)
        for client in _clients(axes, cluster):
            _link(axes, client, ABOVE, one_at_a_time=True)
    _box(axes, ABOVE, "Server")


def _models_of_clusters(axes: Axes, _: str) -> None:
    for group, model in enumerate("AB"):
        for number, client in enumerate([*_clients(axes, 0), *_clients(axes, 1), *_clients(axes, 2)]):
            place = (0.4 + 1.2 * group, 2.0)
            if (number % 3 == 2) == (group == 1):
                _link(axes, client, place, colour=PALETTE[group])
        _box(axes, (0.4 + 1.2 * group, 2.0), f"Model {model}")
    axes.text(1, -0.3, "all get A and B, and send one", ha="center", va="center", fontsize=8)


def _clients(axes: Axes, cluster: int) -> list[tuple[float, float]]:
    """Draw a cluster's three clients; return where they are."""
    places = [(cluster + shift, 0.0) for shift in (-0.28, 0.0, 0.28)]
    axes.plot(*np.transpose(places), "o", color=PALETTE[0], markersize=6, zorder=4)
    return places


def _box(axes: Axes, place: tuple[float, float], text: str) -> None:
    around = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": INK, "linewidth": 0.9}
    axes.text(*place, text, ha="center", va="center", fontsize=7.5, zorder=6, bbox=around)


def _link(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    one_at_a_time: bool = False,
    pale: bool = False,
    colour: str = INK,
) -> None:
    look = {"arrowstyle": "<->", "color": "#9a9a9a" if pale else colour, "linewidth": 0.7 if pale else 1.0}
    look |= {"linestyle": (0, (4, 2)) if one_at_a_time else "-"}
    axes.annotate("", end, start, arrowprops={**look, "shrinkA": 4, "shrinkB": 9, "mutation_scale": 7}, zorder=2)
