"""Final results of runs against a setting in which they differ, such as epsilon."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from atoll.report.figures.style import STYLE, WIDTH_INCHES, add_legend, line_styles, new_figure, title_and_factor
from atoll.report.reading.groups import differences_of, seed_of, settings_of
from atoll.report.reading.records import is_number
from atoll.report.reading.runs import Run
from atoll.support.errors import InputError
from atoll.support.estimates import Band, estimate

_MEASURED = ("ari", "test_accuracy", "test_loss")
_MOST = 2  # panels
_WIDE = 8.0  # ratio of the largest to the smallest value from which an axis is logarithmic

Points = dict[float, dict[int, Run]]
"""The runs at each value of the setting, by seed; of a seed that is given twice, as in a copied folder, the first."""


def plot_against(runs: Sequence[Run], setting: str, band: Band = "interval") -> Figure:
    """Draw the final adjusted Rand index, where measured, and test accuracy, else loss, of finished runs.

    Runs that otherwise differ only in seed and label share a line: their mean, in a `band` as in `plot_curves`. Raises
    InputError unless the setting is a number in which finished runs differ.
    """
    lines = _lines(runs, setting)
    values = sorted({value for points in lines.values() for value in points})
    if len(values) < 2:
        raise InputError(f"--against {setting}: must be a number in which finished runs differ, other than the seed")
    drawn = [run for points in lines.values() for group in points.values() for run in group.values()]
    ends = [{name for name, values in run.rows.items() if np.isfinite(values[-1:]).all()} for run in drawn]
    columns = [name for name in _MEASURED if all(name in end for end in ends)][:_MOST]
    if not columns:
        raise InputError(f"--against {setting}: the runs end with no {', '.join(_MEASURED)} in common to draw")
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, 3.2)
        styles = line_styles(lines)
        for axes, column in zip(figure.subplots(1, len(columns), squeeze=False).flat, columns, strict=True):
            for label, points in lines.items():
                _draw(axes, points, column, styles[label], band)
            _lay_out(axes, values, setting, column)
        if len(lines) > 1:
            add_legend(figure, [Line2D([], [], label=label, **styles[label]) for label in lines])
    return figure


def _draw(axes: Axes, points: Points, column: str, style: Mapping[str, Any], band: Band) -> None:
    values = sorted(points)
    _, factor = title_and_factor(column)
    ends = [estimate([factor * run.rows[column][-1] for run in points[value].values()]) for value in values]
    halves = [each.half(band) or 0.0 for each in ends]
    axes.errorbar(values, [each.mean for each in ends], halves, capsize=3, marker="o", markersize=4, **style)


def _lay_out(axes: Axes, values: Sequence[float], setting: str, column: str) -> None:
    if values[0] > 0 and values[-1] / values[0] >= _WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set(xlabel=setting, ylabel="Adjusted Rand index" if column == "ari" else title_and_factor(column)[0])
    axes.grid(visible=True, axis="y")


def _lines(runs: Sequence[Run], setting: str) -> dict[str, Points]:
    """Return the finished runs by their other differing settings, and by the setting's value."""
    groups = defaultdict[str, Points](dict)
    settings: dict[str, dict[str, Any]] = {}
    for run in runs:
        others = settings_of(run)
        value = others.pop(setting, None)
        if run.finished and is_number(value):
            key = json.dumps(others, sort_keys=True, default=str)
            settings[key] = others
            groups[key].setdefault(float(value), {}).setdefault(seed_of(run), run)
    return dict(zip(differences_of(list(settings.values())), groups.values(), strict=True))
