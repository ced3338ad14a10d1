"""Where runs end, against a setting in which they differ, such as epsilon."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from atoll.report.figures.style import STYLE, WIDTH_INCHES, legend_columns, line_styles, new_figure
from atoll.report.reading.records import is_number
from atoll.report.reading.runs import Run
from atoll.runs.columns import title_of
from atoll.support.errors import InputError

_MEASURED = ("ari", "test_accuracy", "test_loss")
_MOST = 2  # panels
_WIDE = 8.0  # greatest over least value from which an axis is logarithmic

Points = dict[float, list[Run]]
"""The runs at each value of the setting."""


def plot_against(runs: Sequence[Run], setting: str) -> Figure:
    """Draw the adjusted Rand index, where it was measured, and the test accuracy, else loss, of finished runs' ends.

    One line for runs that differ in nothing else but their seed and label: the mean, and one sample standard
    deviation to each side. Raises InputError for a setting that is no number, or in which the runs do not differ.
    """
    lines = _lines(runs, setting)
    values = sorted({value for points in lines.values() for value in points})
    if len(values) < 2:
        raise InputError(f"--against {setting}: must be a number in which the runs, or finished ones of them, differ")
    drawn = [run for points in lines.values() for group in points.values() for run in group]
    columns = [name for name in _MEASURED if all(_ends(run, name) for run in drawn)][:_MOST]
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH_INCHES, 3.2)
        styles = line_styles(lines)
        for axes, column in zip(figure.subplots(1, len(columns), squeeze=False).flat, columns, strict=True):
            for label, points in lines.items():
                _draw(axes, points, column, styles[label])
            _lay_out(axes, values, setting, column)
        handles = [Line2D([], [], label=label, **styles[label]) for label in lines]
        if len(handles) > 1:
            figure.legend(
                handles=handles, loc="outside lower center", ncols=legend_columns(list(lines), figure.get_figwidth())
            )
    return figure


def _draw(axes: Axes, points: Points, column: str, style: Mapping[str, Any]) -> None:
    values = sorted(points)
    scale = 100 if column.endswith("accuracy") else 1
    ends = [scale * np.array([run.rows[column][-1] for run in points[value]]) for value in values]
    spread = [each.std(ddof=1) if len(each) > 1 else 0.0 for each in ends]
    axes.errorbar(values, [each.mean() for each in ends], spread, capsize=3, marker="o", markersize=4, **style)


def _lay_out(axes: Axes, values: Sequence[float], setting: str, column: str) -> None:
    if values[0] > 0 and values[-1] / values[0] >= _WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.set_xticks(values, [f"{value:g}" for value in values])
    title = "Adjusted Rand index" if column == "ari" else title_of(column)
    axes.set(xlabel=setting, ylabel=title + (" (%)" if column.endswith("accuracy") else ""))
    axes.grid(visible=True, axis="y")


def _lines(runs: Sequence[Run], setting: str) -> dict[str, Points]:
    """Return the finished runs by what else they differ in, and by the setting's value."""
    groups = defaultdict[str, Points](dict)
    settings: dict[str, dict[str, Any]] = {}
    for run in runs:
        flat = dict(_flat(run.config))
        value = flat.pop(setting, None)
        if not run.finished or not is_number(value):
            continue
        others = {name: each for name, each in flat.items() if name not in ("seed", "label")}
        key = json.dumps(others, sort_keys=True, default=str)
        settings[key] = others
        groups[key].setdefault(float(value), []).append(run)
    return dict(zip(_labels(list(settings.values())), groups.values(), strict=True))


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what tells groups of settings apart, as ``identity = response``."""
    names = sorted({name for each in settings for name in each})
    apart = [name for name in names if len({str(each.get(name)) for each in settings}) > 1]
    return [", ".join(f"{name.split('.')[-1]} = {each.get(name, 'unset')}" for name in apart) for each in settings]


def _flat(table: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


def _ends(run: Run, column: str) -> bool:
    """Return whether a run's last probe has this column."""
    return column in run.rows and bool(np.isfinite(run.rows[column][-1:]).all())
