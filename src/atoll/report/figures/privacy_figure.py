"""A figure of the epsilon that a private schedule will spend in each cluster."""

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atoll.report.figures.style import BLUE, PALE_BLUE, STYLE, WIDTH_INCHES, new_figure
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError


def plot_spending(rounds: Ids, epsilons: Floats, title: str = "") -> Figure:
    """Draw each cluster's epsilon over rounds, and that of the worst client on top.

    `rounds` is [points], `epsilons` [points, clusters]. Raises InputError without noise, when epsilon is infinite.
    """
    if not np.isfinite(epsilons).all():
        raise InputError("There is nothing to plot: without noise, epsilon is not finite")
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, 3.0)
        ax = figure.subplots()
        for column in epsilons.T:
            ax.plot(rounds, column, color=PALE_BLUE, linewidth=1.0)
        ax.plot([], [], color=PALE_BLUE, linewidth=1.0, label="Worst client of a cluster")
        ax.plot(rounds, epsilons.max(axis=1), color=BLUE, label="Worst client of all")
        ax.set(xlabel="Round", ylabel="Epsilon", title=title, ylim=(0, None))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(visible=True, axis="y")
        ax.legend(loc="lower right")
    return figure
