"""A study's curves in one call: from folders, runs or results to a figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atoll.report.figures.curve_axes import XColumn
from atoll.report.figures.curves import draw_curves, plot_curves, plot_probe
from atoll.report.figures.style import STYLE, figure_width, width_inches
from atoll.report.reading.records import COLUMNS
from atoll.report.reading.runs import Run, find_runs
from atoll.settings.experiment_file import resolved
from atoll.support.errors import InputError
from atoll.support.estimates import Band
from atoll.support.requiring import require, require_has
from atoll.support.wording import show


def curves(
    study: Any,
    y: str | None = None,
    x: XColumn = "round",
    *,
    ax: Axes | None = None,
    band: Band = "interval",
    width: str | float | None = None,
    title: str = "",
) -> Figure:
    """Draw a study's curves: for each setting the mean over its seeds in a band, one colour and one legend entry.

        atoll.plot.curves("runs/mine", width="column").savefig("curves.pdf")

    Args:
        study: the folder of a sweep or of runs, several of them, runs as `find_runs` returns them, or what `run` or
            `run_all` returned.
        y: a column, such as ``"test_accuracy"``; None: training loss and test accuracy or, without one, test loss.
        x: against what.
        ax: draw one column, `y`, into these axes; their figure keeps its size, and is returned.
        band: ``"interval"``, the mean's 95 % t interval, or ``"spread"``, one sample standard deviation to each side.
        width: of a new figure: ``"column"`` (3.5 inches), ``"text"`` (7.16) or inches; None: 8 inches.
        title: above the figure, or the axes.

    Raises:
        InputError: there are no runs, none has the column, or an argument is not allowed.
    """
    require("band", band, Band)
    runs = runs_of(study)
    if ax is not None:
        require_has("ax", ax, "plot", "Matplotlib axes")
        if width is not None:
            raise InputError(f"width = {show(width)}: cannot be used with ax, whose figure keeps its size")
        with mpl.rc_context({"text.parse_math": STYLE["text.parse_math"]}):
            draw_curves(ax, runs, y or "test_accuracy", x, title, band)
        return ax.get_figure(root=True)  # type: ignore[return-value]
    with figure_width(width_inches("width", width)):
        return plot_curves(runs, x, title=title, band=band) if y is None else plot_probe(runs, y, x, title, band)


def runs_of(study: Any) -> list[Run]:
    """Return the runs of a study, in any of the forms that `curves` takes."""
    several = study.values() if isinstance(study, Mapping) else study
    each = list(several) if isinstance(several, list | tuple | type({}.values())) else [study]
    if not each:
        raise InputError("study: holds no runs")
    if all(isinstance(one, str | Path) for one in each):
        return find_runs(each)
    if all(isinstance(one, Run) for one in each):
        return each
    if all(hasattr(one, "history") and hasattr(one, "settings") for one in each):
        return [_run_of(one) for one in each]
    forms = "a folder, runs as atoll.find_runs returns them, or results of atoll.run"
    raise InputError(f"study = {show(study)}: must be {forms}")


def _run_of(result: Any) -> Run:
    """Return a finished `Result` as a run."""
    settings, flat = result.settings, {name: each for name, each in result.history.items() if each.ndim == 1}
    rows = {name: flat.get(name, float("nan") * flat["event"]) for name in (*COLUMNS, *flat)}
    label, folder = settings.label or settings.name, result.folder or Path(settings.name)
    return Run(folder, settings.name, label, settings.panel, resolved(settings), rows, finished=True)
