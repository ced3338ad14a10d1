"""`atoll export`."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import app, check_file, err, out, print_json
from atoll.cli.options import JsonOption
from atoll.support.errors import InputError
from atoll.support.wording import counted, unknown


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
