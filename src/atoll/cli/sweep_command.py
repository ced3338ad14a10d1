"""`atoll sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import (
    ExperimentArg,
    JsonOption,
    OnlyOption,
    QuietOption,
    ScaleOption,
    SetOption,
    VerboseOption,
    app,
    err,
    read_experiments,
)
from atoll.support.errors import InputError

OverOption = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUES",
        help="A setting and its values: a,b,c or, of whole numbers, first..last; with --tune also low..high and "
        "low..high:log. May be repeated: every combination is run.",
    ),
]
JobsOption = Annotated[int, typer.Option(metavar="N", help="Runs at a time, each in a process of its own.")]
FolderOption = Annotated[Path | None, typer.Option("--out", help="Folder for the results; else sweeps/NAME.")]
MetricOption = Annotated[
    str | None,
    typer.Option(
        help="What is compared; else test_accuracy, or test_loss where nothing is classified; with --target "
        "virtual_time. A cost, such as virtual_time or bytes_up, needs a --target."
    ),
]
TargetOption = Annotated[
    float | None, typer.Option(metavar="VALUE", help="A test accuracy (or loss) to reach, at the least cost.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the sweep in the folder.")]
PartOption = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Carry out the I-th of N parts of the runs, beside processes that do the others; goes on if it has begun.",
    ),
]
TuneOption = Annotated[bool, typer.Option("--tune", help="Search for the best setting with Optuna.")]
TrialsOption = Annotated[int | None, typer.Option(metavar="N", help="With --tune: runs in all; else 20.")]


@app.command()
def sweep(
    experiment: ExperimentArg,
    over: OverOption,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    jobs: JobsOption = 1,
    folder: FolderOption = None,
    metric: MetricOption = None,
    target: TargetOption = None,
    resume: ResumeOption = False,
    part: PartOption = None,
    tune: TuneOption = False,
    trials: TrialsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run an experiment with every combination of settings, or search for the best one.

    Example: atoll sweep quickstart --over local.lr=0.01,0.05 --over seed=0..4 --jobs 2
    """
    _check_numbers(jobs, trials, part, tune)
    from atoll.sweep.axes import parse_part

    chosen = slice(None) if part is None else parse_part(part)
    runs = [each.settings for each in read_experiments(experiment, scale, changes, only)]
    from atoll.cli.sweep_action import SweepOptions, run_all, search, usual_metric
    from atoll.sweep.goal import make_goal

    goal = make_goal(metric, target, usual_metric(runs[0]), runs)
    place = folder or Path("sweeps") / runs[0].name
    count = (trials or 20) if tune else None
    asked = SweepOptions(
        experiment, over, changes or [], scale, only, place, jobs, goal, count, part, as_json, quiet, verbose
    )
    watched = search(asked, runs, resume) if tune else run_all(asked, runs, chosen, resume)
    if watched.exit_code:
        err.print(f"interrupted; to go on from here: {asked.resume_command()}", markup=False)
        raise typer.Exit(watched.exit_code)


def _check_numbers(jobs: int, trials: int | None, part: str | None, tune: bool) -> None:
    """Refuse options that are no numbers of anything, or do not go together."""
    for option, number in (("--jobs", jobs), ("--trials", trials)):
        if number is not None and number < 1:
            raise InputError(f"{option} {number}: must be at least 1")
    if trials is not None and not tune:
        raise InputError(f"--trials {trials}: is for --tune; without it every combination is run")
    if part is not None and tune:
        raise InputError(f"--part {part}: is for a grid; a search proposes its trials one after the other")
