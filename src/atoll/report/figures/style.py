"""The look that all figures share."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from atoll.runs.columns import column_title, is_share
from atoll.support.errors import InputError

LineStyle: TypeAlias = str | tuple[int, tuple[float, ...]]

WIDTH_INCHES = 8.0
"""The usual width of a figure: 1200 pixels at 150 dpi."""

WIDTHS = {"column": 3.5, "text": 7.16}
"""Widths in inches of a column and of both columns of a page, as in IEEE journals."""

SAMPLE_INCHES = 0.55  # of a legend's entry: the line's sample and gaps
LETTER_INCHES = 0.075  # of a letter of about 9 points
LEAST_LETTERS = 15  # of a line of a label that is wrapped so that more columns fit
LINE_INCHES = 0.18  # of a line of a legend, with its gap

_width: ContextVar[float | None] = ContextVar("width", default=None)

BLUE = "#0072B2"
PALE_BLUE = "#A3CDE8"

# Okabe and Ito's palette, safe for colour-blind readers, without its yellow, which is too pale for a line.
PALETTE = (BLUE, "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
# For the eighth to the twelfth curve, darker or paler than the first seven.
MORE_COLORS = ("#882255", "#8C7A00", "#6A5ACD", "#8B5A2B", "#5FA8A0")
# Twelve colours, each first with one pattern and then with the other: 24 different curves before a pair repeats.
PATTERNS: tuple[LineStyle, ...] = ("-", (0, (4.5, 1.5)))

STYLE: Any = {  # Any, since the type of a key differs between matplotlib's versions
    "figure.dpi": 150,
    **dict.fromkeys(("font.size", "axes.labelsize", "legend.fontsize"), 9),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8),
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), "#888888"),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), "#333333"),
    "axes.labelcolor": "#222222",
    "axes.linewidth": 0.7,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "text.parse_math": False,  # labels come from settings; a malformed formula would be an error
}
"""Matplotlib settings of all figures: `with matplotlib.rc_context(STYLE)`."""


@contextmanager
def figure_width(inches: float | None) -> Iterator[None]:
    """Set the width of the figures made inside, with text of unchanged size; None: each has its own width."""
    token = _width.set(inches)
    try:
        yield
    finally:
        _width.reset(token)


def width_inches(name: str, width: str | float | None) -> float | None:
    """Return a width in inches, given as ``column``, ``text`` or inches; None: each figure's own."""
    if width is None:
        return None
    try:
        inches = WIDTHS[width] if width in WIDTHS else float(width)
    except (ValueError, TypeError):
        inches = 0.0
    if not 1 <= inches <= 50:
        raise InputError(f"{name} {width}: must be {', '.join(WIDTHS)} or a number of inches from 1 to 50")
    return inches


def drawn_width(inches: float) -> float:
    """Return the width of a figure that is usually this wide, in inches."""
    return _width.get() or inches


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches; inside `figure_width`, of that width and less height."""
    ratio = drawn_width(width) / width
    return Figure(figsize=(ratio * width, height * ratio**0.5), layout="constrained")


def line_styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Assign each distinct label a colour and a line pattern, in order of first appearance."""
    colors = (*PALETTE, *MORE_COLORS)
    return {
        label: {"color": colors[i % len(colors)], "linestyle": PATTERNS[(i + i // len(colors)) % len(PATTERNS)]}
        for i, label in enumerate(dict.fromkeys(labels))
    }


def lay_out_legend(labels: Sequence[str], width_inches: float) -> tuple[int, list[str], int]:
    """Return the columns of the lowest legend of this width, its labels wrapped to fit, and its height in lines."""
    longest = max(map(len, labels), default=0)
    found: list[tuple[int, int, list[str]]] = []
    for columns in range(1, len(labels) + 1):
        letters = int((width_inches / columns - SAMPLE_INCHES) / LETTER_INCHES)
        if columns > 1 and letters < min(longest, LEAST_LETTERS):
            break
        texts = ["\n".join(textwrap.wrap(label, max(letters, 8))) or label for label in labels]
        filled = np.array_split([text.count("\n") + 1 for text in texts], columns)  # as Matplotlib fills them
        found.append((max(int(each.sum()) for each in filled), columns, texts))
    lines, columns, texts = min(found, default=(0, 1, []))
    return columns, texts, lines


def add_legend(figure: Figure, handles: Sequence[Artist], **look: float) -> None:
    """Put a legend below a figure, if there are entries; more than two lines make it higher, and flatten no chart."""
    if handles:
        labels = [str(handle.get_label()) for handle in handles]
        columns, texts, lines = lay_out_legend(labels, figure.get_figwidth())
        figure.set_figheight(figure.get_figheight() + LINE_INCHES * max(0, lines - 2))
        figure.legend(handles=handles, labels=texts, loc="outside lower center", ncols=columns, **look)


def title_and_factor(column: str) -> tuple[str, float]:
    """Return what an axis calls a column, and the factor from its values to those shown: accuracies are in per cent."""
    return (f"{column_title(column)} (%)", 100.0) if is_share(column) else (column_title(column), 1.0)


def strip_frame(axes: Axes) -> None:
    """Remove the frame and the tick marks."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def use_log_scale(axes: Axes, low: float, high: float) -> None:
    """Make the vertical axis logarithmic, with ticks at round numbers between these limits."""
    axes.set_ylim(low, high)  # first, since values that are all 0 have no logarithmic limits of their own
    axes.set_yscale("log", nonpositive="clip")
    label_log_scale(axes.yaxis, low, high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def label_log_scale(axis: Axis, low: float, high: float) -> None:
    """Put ticks at round numbers only; on a short logarithmic axis, powers of ten are too few."""
    steps = tuple(map(float, range(1, 10))) if high < 5 * low else (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=8))
    axis.set_minor_locator(NullLocator())
