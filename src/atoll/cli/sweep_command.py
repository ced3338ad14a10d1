"""`atoll sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import app, end_interrupted, read_experiments, resumable
from atoll.cli.options import ExperimentArg, JsonOption, OnlyOption, QuietOption, ScaleOption, SetOption, VerboseOption
from atoll.support.errors import InputError

OverOption = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUES",
        help="A setting and its values: a,b,c or first..last for whole numbers; with --tune also low..high and "
        "low..high:log. Repeatable; every combination is run.",
    ),
]
JobsOption = Annotated[int, typer.Option(min=1, metavar="N", help="Runs at a time, each in its own process.")]
FolderOption = Annotated[Path | None, typer.Option("--out", help="Folder for the results; by default runs/NAME.")]
MetricOption = Annotated[
    str | None,
    typer.Option(
        help="What to compare; by default test_accuracy, test_loss for regression, or virtual_time with --target. "
        "A cost, such as virtual_time or bytes_up, needs a --target."
    ),
]
TargetOption = Annotated[
    float | None, typer.Option(metavar="VALUE", help="A test accuracy (or loss) to reach at the least cost.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the sweep in the folder.")]
PartOption = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Carry out the I-th of N parts of the runs, while other processes do the rest; resumes by itself.",
    ),
]
TuneOption = Annotated[bool, typer.Option("--tune", help="Search for the best setting with Optuna.")]
TrialsOption = Annotated[int | None, typer.Option(min=1, metavar="N", help="With --tune: runs in all, by default 20.")]


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
    if trials is not None and not tune:
        raise InputError(f"--trials {trials}: is for --tune; without that, every combination is run")
    if part is not None and tune:
        raise InputError(f"--part {part}: is for a grid; a search proposes its trials one after another")
    named, varied = ({each.partition("=")[0].strip() for each in some} for some in (changes or (), over))
    if both := named & varied:
        raise InputError(f"--set {min(both)}: --over gives its values; leave out one of them")
    from atoll.sweep.axes import around, parse_axes, parse_part

    chosen = slice(None) if part is None else parse_part(part)
    overs = around([] if tune else parse_axes(over))  # what is varied need not be in the file
    runs = [each.settings for each in read_experiments(experiment, scale, changes, only, overs)]
    from atoll.cli.sweep_action import SweepOptions, run_all, search, usual_metric
    from atoll.sweep.goal import make_goal

    goal = make_goal(metric, target, usual_metric(runs[0]), runs)
    place = folder or Path("runs") / runs[0].name
    shown = as_json, quiet, verbose
    asked = SweepOptions(
        experiment, over, changes or [], scale, only, place, jobs, metric, goal, tune, trials, part, *shown
    )
    with resumable():
        watched = search(asked, runs, resume) if tune else run_all(asked, runs, chosen, resume)
    if watched.exit_code:
        end_interrupted(asked.resume_command(), watched.exit_code)
