"""`atoll reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import JsonOption, QuietOption, VerboseOption, app


@app.command()
def reproduce(
    what: Annotated[
        str, typer.Argument(metavar="PAPER|FIGURE", help="fedcluster, feduc, cfl-mgd, all, or a recipe's name.")
    ],
    scale: Annotated[str, typer.Option(help="tiny, small or paper: minutes, hours or days.")] = "tiny",
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Each run with the seeds 0 to N - 1; else 3, or as many as the folder holds."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for runs and page; else runs/reproduce-...")
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Or only make the page of what is there.")] = True,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; else one a processor core.")] = None,
    device: Annotated[str, typer.Option(help="Where runs train: cpu or cuda.")] = "cpu",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run papers' figures and tables again, and write one page that holds them against what the papers say.

    A claim that fails is a result, not an error; only a run that fails is. The same command goes on after any stop.

    Example: atoll reproduce fedcluster-figure-3
    """
    from atoll.cli.reproduce_action import ReproduceOptions, reproduce_papers

    if reproduce_papers(ReproduceOptions(what, scale, seeds, folder, run, jobs, device, as_json, quiet, verbose)):
        raise typer.Exit(1)
