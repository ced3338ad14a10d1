"""`atoll export`."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import JsonOption, app, check_file, err, out, print_json
from atoll.support.errors import InputError
from atoll.support.wording import unknown


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    file_format: Annotated[str, typer.Option("--format", help="safetensors, state-dict or onnx.")] = "safetensors",
    file: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file; else RUN/model.*.")] = None,
    cluster: Annotated[int | None, typer.Option(metavar="J", help="A cluster's model, counted from 0.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's model for other programs: the server's, the aggregators' mean, or a cluster's.

    Example: atoll export runs/quickstart/fedavg --format onnx
    """
    check_file("--out", file)
    from atoll.runs.export import ENDINGS, export_model
    from atoll.settings.plugins import import_from

    if file_format not in ENDINGS:
        raise InputError(f"--format {file_format}: {unknown(file_format, ENDINGS)}")
    import_from(run)
    made = export_model(run, file_format, file, cluster)
    if not made.is_finished:
        err.print(f"notice: the run is not finished; this is its model after {made.events_done} events", markup=False)
    if as_json:
        print_json(
            {
                "file": str(made.file),
                "format": file_format,
                "parameters": made.parameters,
                "inputs": made.inputs,
                "events": made.events_done,
                "finished": made.is_finished,
            }
        )
        return
    out.print(f"{made.file}: {made.parameters:,} numbers, after {made.events_done} events", markup=False)
    out.print(f"Inputs: {made.inputs}", markup=False)
