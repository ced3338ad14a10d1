"""Figures for `--plot` and `--width`: check the options, draw, and write the files."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cli.common import claim_file, err, heading_of
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atoll.experiment.experiment import Experiment

_NOT_WRITTEN = {".bmp", ".eps", ".gif", ".htm", ".html", ".jpeg", ".jpg", ".ps", ".tif", ".tiff", ".webp"}


def claim_plot(path: Path | None, width: str | None, runs: "Sequence[Experiment]", ids: bool = False) -> float | None:
    """Make the folder of `--plot`, as `claim_file` does; return the figures' width, and say which run they draw.

    Without `--plot`, `--width` and `--ids` are refused.
    """
    for option, given in (("--width", width), ("--ids", ids)):
        if given and path is None:
            raise InputError(f"{option}: is for the figures of --plot; give --plot as well")
    inches = read_width(width)
    if path is not None and path.suffix.lower() in _NOT_WRITTEN:
        raise InputError(f"--plot {path}: must end in .pdf, .svg or .png, or have no ending, for a PNG and an SVG")
    claim_file("--plot", path)
    if path is not None and len(runs) > 1:
        err.print(f"--plot draws the first of {len(runs)} runs, {heading_of(runs[0])}; --only chooses another")
    return inches


def read_width(text: str | None) -> float | None:
    """Return the width of figures in inches, as `width_inches` reads it from ``--width``."""
    if text is None:
        return None
    from atoll.report.figures.style import width_inches

    return width_inches("--width", text)


def save_plots(path: Path | None, inches: float | None, draw: "Callable[[], Iterable[tuple[str, Figure]]]") -> None:
    """Draw figures this wide and write each to the path, with its suffix in the name; do nothing without a path."""
    if path is None:
        return
    from atoll.report.figures.style import figure_width
    from atoll.report.report_files import SUFFIXES, save_figure

    with figure_width(inches):
        for suffix, figure in draw():
            is_named = path.suffix.lower() in SUFFIXES
            file = path.with_stem(path.stem + suffix) if is_named else path.with_name(path.name + suffix)
            for written in save_figure(figure, file):
                err.print(f"wrote {written}")
