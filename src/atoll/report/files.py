"""Writing figures and tables to files, each whole or not at all."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import get_args

import matplotlib as mpl
from matplotlib.figure import Figure

from atoll.record import write_atomically
from atoll.report.curves import XColumn, plot_curves
from atoll.report.runs import Run
from atoll.report.tables import as_dicts, as_markdown, rounds_to_target

DPI = 150


def write_report(runs: Sequence[Run], out: Path | str, targets: Sequence[float] | None = None) -> list[Path]:
    """Write curves against rounds, client updates and virtual time, and the table, into the folder `out`.

    The folder is made if need be. Returns the files: curves-*.png and .svg, table.md, table.json. Raises
    InputError when there are no runs.
    """
    out = Path(out)
    figures = {x: plot_curves(runs, x) for x in get_args(XColumn)}
    rows = rounds_to_target(runs, targets)
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for x, figure in figures.items():
        files += save_figure(figure, out / f"curves-{x.replace('_', '-')}")
    table = json.dumps(as_dicts(rows), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    for name, text in (("table.md", as_markdown(rows)), ("table.json", table)):
        write_atomically(out / name, text.encode())
        files.append(out / name)
    return files


def save_figure(figure: Figure, path_without_suffix: Path | str) -> list[Path]:
    """Write a figure as PNG (150 dpi) and SVG, equal figures to equal bytes, and return the two files."""
    stem = Path(path_without_suffix)
    png, svg = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "svg"))
    for file, options in ((png, {"format": "png"}), (svg, {"format": "svg", "metadata": {"Date": None}})):
        stream = BytesIO()
        with mpl.rc_context({"svg.hashsalt": "atoll"}):
            figure.savefig(stream, dpi=DPI, **options)
        write_atomically(file, stream.getvalue())
    return [png, svg]
