"""`atoll reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import JsonOption, app


@app.command()
def reproduce(
    what: Annotated[
        str, typer.Argument(metavar="PAPER|FIGURE", help="fedcluster, feduc, cfl-mgd, all, or a recipe's name.")
    ],
    scale: Annotated[str, typer.Option(help="tiny, small or paper: minutes, hours or days.")] = "tiny",
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for runs and page; else runs/reproduce-...")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep what is finished, and go on.")] = False,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Or only make the page of what is there.")] = True,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; else one a processor core.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run papers' figures and tables again, and write one page that holds them against what the papers say.

    A claim that fails is a result, not an error; only a run that fails is.

    Example: atoll reproduce fedcluster-figure-3
    """
    from atoll.cli.reproducing import reproduce_papers

    if reproduce_papers(what, scale, folder, resume, run, jobs, as_json):
        raise typer.Exit(1)
