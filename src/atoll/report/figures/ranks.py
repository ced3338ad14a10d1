"""Many methods on many data sets: average ranks with their critical difference, and scores against costs."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from atoll.report.figures.style import BLUE, PALETTE, STYLE, WIDTH_INCHES, new_figure

Point = tuple[str, float, Sequence[float]]
"""A method, its score, and its costs."""


def plot_ranks(ranks: Mapping[str, float], difference: float) -> Figure:
    """Draw average ranks, best first, and a bar over each group of methods that are not apart (Demsar 2006, fig. 1).

    `difference` is the critical one: ranks that differ by less are not apart.
    """
    names, values = list(ranks), np.array(list(ranks.values()))
    groups = cliques(values, difference)
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, 1.2 + 0.18 * (len(names) + len(groups)))
        axes = figure.subplots()
        places = np.arange(len(names))
        axes.hlines(places, 1, values, color="#e4e4e4")
        axes.scatter(values, places, color=BLUE, zorder=3)
        for row, (low, high) in enumerate(groups, start=len(names) + 1):
            axes.plot(values[[low, high]], [row, row], color=PALETTE[1], linewidth=3, solid_capstyle="butt")
        axes.plot([1, 1 + difference], [-1.5, -1.5], color="#333333", marker="|")
        axes.text(1 + difference, -1.5, f"  critical difference {difference:.2f}", va="center", fontsize=8)
        axes.set_yticks(places, names)
        axes.set(ylim=(len(names) + len(groups) + 1.5, -2.5), xlabel="Average rank (1: best); bars: not apart")
    return figure


def cliques(values: Sequence[float] | np.ndarray, difference: float) -> list[tuple[int, int]]:
    """Return the first and last place of each largest group of sorted values that differ by less than this."""
    ends = [int(np.searchsorted(values, value + difference)) - 1 for value in values]
    return [(i, end) for i, end in enumerate(ends) if end > i and (i == 0 or end > ends[i - 1])]


def plot_fronts(panels: Mapping[str, Sequence[Point]], costs: Sequence[str]) -> Figure:
    """Draw each method's score against each cost, a row of charts per panel; those on the front have their names."""
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, 2.3 * len(panels))
        grid = figure.subplots(len(panels), len(costs), squeeze=False)
        for (title, points), row in zip(panels.items(), grid, strict=True):
            for number, (cost, axes) in enumerate(zip(costs, row, strict=True)):
                shown = [(name, score, each[number]) for name, score, each in points]
                front = pareto(shown)
                axes.scatter([x for _, _, x in shown], [score for _, score, _ in shown], s=10, color="#aaaaaa")
                axes.plot([x for _, _, x in front], [score for _, score, _ in front], "o-", markersize=4, color=BLUE)
                for place, (name, score, x) in enumerate(front):  # names in turn below and above
                    beside = (3, 4 if place % 2 else -8)
                    axes.annotate(name, (x, score), xytext=beside, textcoords="offset points", fontsize=7)
                axes.set(xlabel=cost, ylabel="Score", title=title if number == 0 else "")
                axes.margins(x=0.2, y=0.15)
                axes.set_xlim(left=max(0.0, axes.get_xlim()[0]))  # costs are not negative
    return figure


def pareto(points: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Return the points that none beats in both score and cost, the cheapest first."""
    front: list[tuple[str, float, float]] = []
    for point in sorted(points, key=lambda each: (each[2], -each[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front
