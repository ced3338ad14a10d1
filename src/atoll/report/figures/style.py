"""The look that all figures share."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

LineStyle: TypeAlias = str | tuple[int, tuple[float, ...]]

WIDTH_INCHES = 8.0
"""The usual width of a figure: 1200 pixels at 150 dpi."""

WIDTHS = {"column": 3.5, "text": 7.16}
"""Widths in inches of a column and of both columns of a page, as IEEE's journals have them."""

_width: ContextVar[float | None] = ContextVar("width", default=None)

BLUE = "#0072B2"
PALE_BLUE = "#A3CDE8"

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow, too pale for a line.
PALETTE = (BLUE, "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
# Seven colours and two patterns have no common factor: 14 different curves before a pair repeats.
PATTERNS: tuple[LineStyle, ...] = ("-", (0, (4.5, 1.5)))

STYLE: Any = {  # Any, since the type of a key differs between matplotlib's versions
    "figure.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#222222",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.color": "#888888",
    "ytick.color": "#888888",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.parse_math": False,  # labels come from settings, and one that is no formula would be an error
}
"""Settings to draw under, as `with matplotlib.rc_context(STYLE)`."""


@contextmanager
def figure_width(inches: float | None) -> Iterator[None]:
    """Let figures that are made inside be so wide, with letters as large as ever; None: each its own width."""
    token = _width.set(inches)
    try:
        yield
    finally:
        _width.reset(token)


def drawn_width(inches: float) -> float:
    """Return how wide a figure is that is usually so wide."""
    return _width.get() or inches


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches; under `figure_width` of that width, and lower if narrower."""
    ratio = drawn_width(width) / width
    return Figure(figsize=(ratio * width, height * ratio**0.5), layout="constrained")


def line_styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Give each distinct label a colour and a line pattern, in order of first appearance."""
    return {
        label: {"color": PALETTE[index % len(PALETTE)], "linestyle": PATTERNS[index % len(PATTERNS)]}
        for index, label in enumerate(dict.fromkeys(labels))
    }


def legend_columns(labels: Iterable[str], width_inches: float) -> int:
    """Return how many columns a legend of this width takes, with its rows as even as they get."""
    lengths = [len(label) for label in labels]
    inches_per_entry = 0.55 + 0.075 * max(lengths)  # the line's sample and gaps, then about 9 point text
    fitting = max(1, min(len(lengths), int(width_inches / inches_per_entry)))
    return math.ceil(len(lengths) / math.ceil(len(lengths) / fitting))


def strip_frame(axes: Axes) -> None:
    """Leave an image bare: no frame, no tick marks."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def use_log_scale(axes: Axes, low: float, high: float) -> None:
    """Make the vertical axis logarithmic, with ticks at round numbers between these limits."""
    axes.set_yscale("log", nonpositive="clip")
    axes.yaxis.set_major_locator(LogLocator(subs=_log_steps(low, high), numticks=8))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)


def _log_steps(low: float, high: float) -> tuple[float, ...]:
    """Return which multiples of the powers of ten to label: a short axis needs more than the powers."""
    if high < 5 * low:
        return tuple(map(float, range(1, 10)))
    return (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
