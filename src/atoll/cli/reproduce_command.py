"""`atoll reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import app
from atoll.cli.options import JsonOption, OnlyOption, QuietOption, VerboseOption


@app.command()
def reproduce(
    what: Annotated[
        str, typer.Argument(metavar="PAPER|FIGURE", help="fedcluster, feduc, cfl-mgd, all, or the name of a recipe.")
    ],
    scale: Annotated[
        str | None,
        typer.Option(
            help="tiny, small or paper: minutes, hours or days; with --no-run also largest, each claim at the largest "
            "scale that is kept. By default tiny, or with --no-run and evidence largest."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Seeds 0 to N - 1 for each run; by default as many as the folder holds, or 3."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for runs and page; by default runs/reproduce-...")
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of finished runs to take as done and to add to; by default evidence, if there."
        ),
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run, or only make the page from existing runs.")] = True,
    only: OnlyOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs at a time; by default one per core.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where runs train: cpu, cuda or cuda:0,cuda:1.")] = "cpu",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run papers' figures and tables again, and write a page that compares the results with the papers' claims.

    A claim that fails is a result, not an error; a run that fails is an error. After an interruption, give the same
    command again to resume.

    Example: atoll reproduce fedcluster-figure-3
    """
    from atoll.cli.reproduce_action import ReproduceOptions, reproduce_papers, usual_scale

    chosen = scale or usual_scale(folder, evidence, run)
    if reproduce_papers(
        ReproduceOptions(what, chosen, seeds, folder, evidence, run, only, jobs, device, as_json, quiet, verbose)
    ):
        raise typer.Exit(1)
