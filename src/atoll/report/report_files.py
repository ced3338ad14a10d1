"""Writing figures and tables to files, each whole or not at all."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import matplotlib as mpl
from matplotlib.figure import Figure

from atoll.report.figures.against import plot_against
from atoll.report.figures.assignments import has_identity, plot_identity
from atoll.report.figures.client_curves import plot_clients
from atoll.report.figures.curve_axes import XColumn
from atoll.report.figures.curves import differ_in_bytes, has_column, plot_curves, plot_probe, probed
from atoll.report.reading.groups import group_runs
from atoll.report.reading.runs import Run
from atoll.report.tables.run_tables import rounds_to_target
from atoll.report.tables.spread import spread_over_seeds
from atoll.report.tables.spread_tables import final_table, spread_as_csv, target_table
from atoll.report.tables.writing import as_csv, as_dicts, table_of
from atoll.support.estimates import Band
from atoll.support.files import make_folder, write_atomically
from atoll.support.requiring import require, require_has, require_path
from atoll.support.wording import slug

DPI = 150
SUFFIXES = (".png", ".svg", ".pdf")


def write_report(
    runs: Sequence[Run],
    out: Path | str,
    targets: Sequence[float] | None = None,
    stable: bool = False,
    against: str | None = None,
    baseline: str | None = None,
    band: Band = "interval",
) -> list[Path]:
    """Write curves against rounds, client updates and virtual time, and the table, into the folder `out`.

    If the size of updates differs between runs, also curves against bytes sent up. Where recorded, also the error to
    planted parameters, custom evaluation metrics, metrics of single clients, and a figure of each run's learned cluster
    assignments; with a setting `against`, such as ``privacy.epsilon``, also final results against it. Runs that differ
    only in their seed are one curve, in a `band` as in `plot_curves`, and have tables over seeds: final results, with
    differences to the setting labelled `baseline` and a paired test, and the costs of targets. The folder is created if
    necessary. Returns the files: curves-*, parameter-error, probe-*, clients-*, identity-* and against-* as .png, .svg
    and .pdf, table, spread and targets as .md and .tex, table and spread also as .csv and .json. `targets` and `stable`
    are as in `rounds_to_target`.

    Raises:
        InputError: there are no runs, or no setting is labelled `baseline` and comparable with another.
    """
    out = Path(out)
    require("band", band, Band)
    tables = dict(_tables(runs, targets, stable, baseline, band))
    figures = dict(_figures(runs, band))
    if against is not None:
        figures[f"against-{against.replace('.', '-').replace('_', '-')}"] = plot_against(runs, against, band)
    make_folder(out)
    files = []
    for stem, figure in figures.items():
        for suffix in SUFFIXES:
            files += save_figure(figure, out / f"{stem}{suffix}")
    for name, text in tables.items():
        write_atomically(out / name, text.encode())
        files.append(out / name)
    return files


def _figures(runs: Sequence[Run], band: Band) -> Iterator[tuple[str, Figure]]:
    for x in get_args(XColumn):
        if x == "bytes_up" and not differ_in_bytes(runs):  # the curves would look the same as against client updates
            continue
        yield f"curves-{x.replace('_', '-')}", plot_curves(runs, x, band=band)
    if any(has_column(run, "parameter_error") for run in runs):
        yield "parameter-error", plot_probe(runs, "parameter_error", band=band)
    for column in probed(runs):
        yield f"probe-{column.replace('_', '-')}", plot_probe(runs, column, band=band)
    for column in dict.fromkeys(column for run in runs for column in run.clients):
        yield f"clients-{column.replace('_', '-')}", plot_clients(runs, column)
    first = [group.counted[0] for group in group_runs(runs)]
    with_identity = [run for run in first if has_identity(run)]
    for stem, run in zip(_stems(with_identity), with_identity, strict=True):
        yield f"identity-{stem}", plot_identity(run)


def _stems(runs: Sequence[Run]) -> list[str]:
    """Return a unique name for each run's own files, from its panel and label, or else its folder."""
    stems: list[str] = []
    for run in runs:
        stem = slug(f"{run.panel} {run.label}") or slug(run.folder.resolve().name) or "run"
        taken = sum(other == stem or other.startswith(f"{stem}~") for other in stems)
        stems.append(f"{stem}~{taken + 1}" if taken else stem)
    return stems


def _tables(
    runs: Sequence[Run], targets: Sequence[float] | None, stable: bool, baseline: str | None, band: Band
) -> Iterator[tuple[str, str]]:
    rows = rounds_to_target(runs, targets, stable=stable)
    yield "table.md", table_of(rows).as_markdown()
    yield "table.tex", table_of(rows).as_latex()
    yield "table.csv", as_csv(rows)
    yield "table.json", _as_json(as_dicts(rows))
    if spreads := spread_over_seeds(runs, targets, stable, baseline):
        yield "spread.md", final_table(spreads, band).as_markdown()
        yield "spread.tex", final_table(spreads, band).as_latex()
        yield "spread.csv", spread_as_csv(spreads)
        yield "spread.json", _as_json(list(map(asdict, spreads)))
    if any(spread.targets for spread in spreads):
        yield "targets.md", target_table(spreads, band).as_markdown()
        yield "targets.tex", target_table(spreads, band).as_latex()


def _as_json(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def save_figure(figure: Figure, path: Path | str) -> list[Path]:
    """Write a figure and return the files; equal figures give equal bytes.

    A path that ends in .png (150 dpi), .svg or .pdf is the file; any other is written as PNG and SVG.
    """
    require_has("figure", figure, "savefig", "a Matplotlib figure")
    path = require_path("path", path)
    named = path.suffix.lower() in SUFFIXES
    files = [path] if named else [path.with_name(f"{path.name}{suffix}") for suffix in SUFFIXES[:2]]
    for file in files:
        stream = BytesIO()
        kind = file.suffix.lower()
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(kind)
        # TrueType fonts, which journals require in PDF files.
        with mpl.rc_context({"svg.hashsalt": "atoll", "pdf.fonttype": 42}):
            figure.savefig(stream, dpi=DPI, format=kind[1:], metadata=metadata)
        write_atomically(file, stream.getvalue())
    return files
