"""`atoll export` and `atoll verify`."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from atoll.cli.common import app, check_file, err, out, print_json, refuse_below_file
from atoll.cli.options import JsonOption
from atoll.support.errors import InputError
from atoll.support.wording import counted, unknown

if TYPE_CHECKING:
    from atoll.runs.verify import Check


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    file_format: Annotated[
        str | None, typer.Option("--format", help="safetensors (the default), state-dict or onnx, or as --out ends.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file; by default RUN/model.*.")
    ] = None,
    cluster: Annotated[int | None, typer.Option(metavar="J", help="Take the model of cluster J, from 0.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's model for other programs: the server's, the mean of the aggregators', or a cluster's.

    Example: atoll export runs/quickstart/fedavg --format onnx
    """
    check_file("--out", file)
    from atoll.runs.export import ENDINGS, export_model, format_of
    from atoll.settings.plugins import import_from

    refuse_below_file(Path(file or "").parent)
    file_format = file_format or format_of(file)
    if file_format not in ENDINGS:
        raise InputError(f"--format {file_format}: {unknown(file_format, ENDINGS)}")
    import_from(run)
    made = export_model(run, file_format, file, cluster)
    events = counted(made.events_done, "event")
    if not made.is_finished:
        err.print(f"notice: the run is not finished; this is its model after {events}")
    if as_json:
        numbers = {"parameters": made.parameters, "inputs": made.inputs, "events": made.events_done}
        print_json({"file": str(made.file), "format": file_format, **numbers, "finished": made.is_finished})
        return
    out.print(f"{made.file}: {made.parameters:,} parameters, after {events}")
    out.print(f"Inputs: {made.inputs}")


@app.command("verify")
def verify_command(
    run: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="A run's folder: run its events again.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that runs repeat on this machine: with other executors or numbers of workers, and after resuming.

    With a run's folder, run its events again, those of a fleet in simulation, and compare; the last line is
    "equal" or the first difference. The exit code is 1 if something does not repeat. Example: atoll verify
    """
    from atoll.runs.verify import verify, verify_run
    from atoll.settings.plugins import import_from

    import_from(run or Path())
    with tempfile.TemporaryDirectory(prefix="atoll-verify-") as folder:
        checks = list(verify(Path(folder))) if run is None else [verify_run(run, Path(folder) / "run")]
    if as_json:
        print_json([asdict(check) | {"holds": check.holds} for check in checks])
    elif run is None:
        out.print(_as_table(checks))
    else:
        (check,) = checks
        out.print(f"{check.what}\n{check.first_difference or 'equal'}", highlight=False)
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


def _as_table(checks: "list[Check]") -> Table:
    table = Table("Compared with serial, uninterrupted", "Must be equal to", "Models differ by", "Rows", "Holds")
    for check in checks:
        differs = "nothing" if check.difference == 0 else f"{check.difference:.1e}"
        rows = "equal" if check.rows_equal else "differ"
        table.add_row(check.what, check.must, differs, rows, "yes" if check.holds else "NO")
    return table
