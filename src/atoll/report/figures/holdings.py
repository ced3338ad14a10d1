"""A figure of clients' data: how many samples, of which classes, with which inputs."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from atoll.report.figures.before_training import (
    MAX_CLIENTS,
    add_colorbar,
    draw_shares,
    draw_sizes,
    evenly,
    set_client_ticks,
)
from atoll.report.figures.style import STYLE, WIDTH_INCHES, new_figure, strip_frame
from atoll.support.arrays import Floats


def plot_holdings(
    class_counts: ArrayLike, features: ArrayLike, names: Sequence[str], title: str = "", classes: Sequence[str] = ()
) -> Figure:
    """Draw each client's number of samples, class shares and features, one above the other, clients across.

    Without classes, or with one, there are no shares.

    Args:
        class_counts: samples by class, [clients, classes].
        features: mean features of the clients drawn, `evenly` of at most 60, [drawn, features], centred at 0.
        classes: names of the classes; by default their numbers.
    """
    counts, means = np.asarray(class_counts, np.float64), np.asarray(features, np.float64)
    drawn = evenly(len(counts), MAX_CLIENTS)
    heights = [1.1, float(np.clip(0.2 * counts.shape[1], 1.4, 3.5)), float(np.clip(0.2 * len(names), 1.4, 4.5))]
    if counts.shape[1] == 1:
        del heights[1]
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, sum(heights) + 1.3)
        sizes, *shares, inputs = figure.subplots(len(heights), 1, height_ratios=heights)
        draw_sizes(sizes, counts[drawn].sum(axis=1), "Samples", title)
        for ax in shares:
            draw_shares(ax, counts, label="Share of the\nclient's samples")
            if 0 < len(classes) <= 20:
                ax.set_yticks(range(len(classes)), list(classes))
            ax.set(title="", xlabel="")
        _draw_features(inputs, means, names)
        set_client_ticks(inputs, drawn)
        more = f" ({len(drawn)} of {len(counts):,})" if len(drawn) < len(counts) else ""
        inputs.set_xlabel(f"Client{more}")
    return figure


def _draw_features(ax: Axes, means: Floats, names: Sequence[str]) -> None:
    """Draw [clients, features] in colours symmetric around 0."""
    most = float(abs(means).max()) or 1.0
    image = ax.imshow(means.T, aspect="auto", interpolation="nearest", cmap="RdBu_r", vmin=-most, vmax=most)
    ax.set_yticks(range(len(names)), [name if len(name) <= 24 else f"{name[:23]}…" for name in names])
    strip_frame(ax)
    add_colorbar(image, "Mean, in standard\ndeviations of samples")
