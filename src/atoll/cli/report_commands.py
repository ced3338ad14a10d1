"""`atoll report` and `atoll watch`: what runs have found, and find."""

import os
import shlex
import webbrowser
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.common import app, claim_file, err, option_words, out, print_json, refuse_below_file
from atoll.cli.figure_files import read_width
from atoll.cli.interrupts import Interrupts
from atoll.cli.options import JsonOption, WidthOption
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from atoll.report.reading.runs import Run

_NAMED = 3  # runs without rows

TargetOption = Annotated[
    list[float] | None, typer.Option(metavar="SHARE", help="A test accuracy to reach, 0 to 1. Repeatable.")
]
OverlayOption = Annotated[bool, typer.Option("--overlay", help="Show the runs of all panels in one.")]
PageOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write one page for a browser, and no folder unless --out is given."),
]
StableOption = Annotated[
    bool, typer.Option("--stable", help="Count a target as met once all later evaluations meet it too.")
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Write all evaluations of all runs as CSV, one row each.")
]
ParquetOption = Annotated[Path | None, typer.Option("--parquet", metavar="FILE", help="Write the same as Parquet.")]


@app.command("report")
def report_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of runs.")],
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the report; by default DIR/report, in the first DIR.")
    ] = None,
    page: PageOption = None,
    target: TargetOption = None,
    stable: StableOption = False,
    width: WidthOption = None,
    overlay: OverlayOption = False,
    against: Annotated[
        str | None, typer.Option(metavar="SETTING", help="Plot final results against a setting, such as local.lr.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Compare the other settings with this one, by a paired test over seeds."),
    ] = None,
    band: Annotated[
        str,
        typer.Option(metavar="KIND", help="In figures and tables: interval (95 % t interval) or spread (deviation)."),
    ] = "interval",
    as_json: JsonOption = False,
    as_csv: CsvOption = None,
    as_parquet: ParquetOption = None,
) -> None:
    """Compare runs: curves against rounds, client updates and virtual time, and rounds to target accuracies.

    Example: atoll report runs/fedcluster runs/fedavg --html compared.html --target 0.9
    """
    check_targets(target)
    target = list(dict.fromkeys(target or ())) or None
    inches = read_width(width)
    files = {"--html": page, "--csv": as_csv, "--parquet": as_parquet}
    _check_files(files, folder)
    from atoll.report.figures.curves import has_column
    from atoll.report.figures.style import figure_width
    from atoll.report.report_files import write_report
    from atoll.report.tables.run_tables import rounds_to_target
    from atoll.report.tables.spread import spread_over_seeds
    from atoll.report.tables.spread_tables import narrow_tables
    from atoll.report.tables.writing import as_dicts
    from atoll.support.estimates import Band
    from atoll.support.requiring import require

    bands: Band = require("--band", band, Band)
    runs, notices = _read(folders, overlay)
    if target and not any(has_column(run, "test_accuracy") for run in runs):
        raise InputError(f"--target {target[0]:g}: is a test accuracy, and no run has recorded any; leave it out")
    rows = rounds_to_target(runs, target, stable=stable)
    otherwise = None if page or as_csv or as_parquet else folders[0] / "report"
    of_folder = {"--against": against, "--width": width}
    if as_json:  # which has no tables over seeds; a page has them, without bands
        of_folder |= {"--baseline": None if page else baseline, "--band": None if band == "interval" else band}
    place = _place_of(folder, otherwise, of_folder)
    spreads = spread_over_seeds(runs, target, stable, baseline)
    for option, path in files.items():
        claim_file(option, path)
    with figure_width(inches):
        written = write_report(runs, place, target, stable, against, baseline, bands) if place else []
    if page:
        from atoll.report.page import write_page

        options = ("--target", target), ("--stable", stable), ("--overlay", overlay), ("--baseline", baseline)
        command = _again("report", folders, ("--html", page), *options)
        write_page(runs, page, target, command, stable, notices, baseline)
    _write_probes(runs, as_csv, as_parquet)
    if as_json:
        print_json(as_dicts(rows))
        return
    for table in narrow_tables(rows, spreads, bands):
        out.print(table.as_rich())
    for file in (*written, *filter(None, files.values())):
        out.print(str(file))


def _again(command: str, folders: Sequence[Path], *options: tuple[str, Any]) -> str:
    """Return the command line that makes the page again."""
    return shlex.join(["atoll", command, *map(str, folders), *option_words(*options)])


def _place_of(folder: Path | None, otherwise: Path | None, of_folder: Mapping[str, Any]) -> Path | None:
    """Return the folder for the report; None: no folder is written, and no option for one may be given."""
    place = folder or otherwise
    if place:
        refuse_below_file(place)
    if folder and folder.suffix in (".html", ".csv", ".parquet") and not folder.exists():
        raise InputError(f"--out {folder}: must be a folder; for one file, give --{folder.suffix[1:]} {folder}")
    for option, given in of_folder.items():
        if given is not None and not place:
            raise InputError(f"{option}: is for a folder's figures and tables; give --out as well")
    return place


def _read(folders: Sequence[Path], is_overlay: bool) -> "tuple[Sequence[Run], list[str]]":
    """Return the runs, and a notice of each that was left out; also print these."""
    from atoll.report.reading.groups import overlay
    from atoll.report.reading.runs import find_readable, listed_folders

    runs, faults = find_readable(folders)
    asked = {each.resolve(): str(each) for path in folders for each in listed_folders(path)[0]}
    told = {folder for folder, name in asked.items() if any(fault.startswith(name + os.sep) for fault in faults)}
    told |= {run.folder.resolve() for run in runs}
    missing = [name for folder, name in asked.items() if folder not in told]
    if missing:
        rest = f" and {len(missing) - _NAMED} more" * (len(missing) > _NAMED)
        faults.append(f"{len(missing)} of the {len(asked)} runs have no rows yet: {', '.join(missing[:_NAMED])}{rest}")
    for fault in faults:
        err.print(f"warning: left out: {fault}")
    return overlay(runs) if is_overlay else runs, [f"Left out: {fault}" for fault in faults]


def _write_probes(runs: "Sequence[Run]", as_csv: Path | None, as_parquet: Path | None) -> None:
    """Write all probes to those files that are given."""
    from atoll.report.tables.frames import columns_as_csv, columns_as_parquet, columns_of_runs
    from atoll.support.files import write_atomically

    columns = columns_of_runs(runs) if as_csv or as_parquet else {}
    if as_csv:
        write_atomically(as_csv, columns_as_csv(columns).encode())
    if as_parquet:
        write_atomically(as_parquet, columns_as_parquet(columns))


def check_targets(targets: Sequence[float] | None) -> None:
    """Reject invalid target accuracies."""
    for value in targets or ():
        if not 0 < value <= 1:
            meant = f"; {value:g} % is {value / 100:g}" if 1 < value <= 100 else ""
            raise InputError(f"--target {value:g}: must be greater than 0 and at most 1{meant}")


def _check_files(files: Mapping[str, Path | None], folder: Path | None) -> None:
    """Reject a page that does not end in .html or .htm, and outputs in the same file."""
    if (page := files["--html"]) is not None and page.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--html {page}: must end in .html, so that a browser knows what it is")
    named = [("--out", folder / name) for name in ("table.csv", "spread.csv")] if folder else []
    named += [(option, file) for option, file in files.items() if file]
    for (other, taken), (option, file) in combinations(named, 2):
        if file.resolve() == taken.resolve():
            raise InputError(f"{option} {file}: is a file that {other} writes; give another path")


@app.command("watch")
def watch_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of runs.")],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to serve on; 0 takes any free one.")] = 8377,
    host: Annotated[
        str, typer.Option(help="Address to serve on; any but 127.0.0.1 lets other machines look.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    target: TargetOption = None,
    overlay: OverlayOption = False,
) -> None:
    """Show the page of `atoll report --html` while runs go on, kept up to date. It only reads.

    Example: atoll watch runs/quickstart --no-browser
    """
    check_targets(target)
    for folder in folders:
        refuse_below_file(folder)
    from atoll.report.page_server import Watch, make_server

    command = _again("watch", folders, ("--target", target), ("--overlay", overlay))
    server = make_server(Watch(folders, target or None, command, overlay), host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/"
    if not ip_address(str(server.server_address[0])).is_loopback:
        err.print(f"warning: --host {host}: anyone who can reach this machine can read these runs")
    with Interrupts() as interrupts, server:
        out.print(f"Watching at {url} (Ctrl-C stops)")
        for folder in (each for each in folders if not each.is_dir()):
            out.print(f"{folder} does not exist yet; its runs will be shown once it does")
        if browser:
            webbrowser.open(url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            err.print("stopped watching; the runs go on")
    raise typer.Exit(interrupts.exit_code)
