"""`atoll plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.common import (
    ExperimentArg,
    JsonOption,
    OnlyOption,
    QuietOption,
    ScaleOption,
    SetOption,
    app,
    read_experiments,
)
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from atoll.experiment.experiment import Experiment


SecondsOption = Annotated[
    float | None, typer.Option(metavar="S", help="Virtual time that there is; else run.virtual_seconds.")
]
BytesOption = Annotated[
    float | None, typer.Option("--bytes", metavar="B", help="Bytes that may be sent in all, up and down.")
]
TargetOption = Annotated[
    float | None, typer.Option(metavar="A", help="A test accuracy (or loss) to reach as early as possible.")
]
OverOption = Annotated[
    list[str] | None,
    typer.Option(metavar="SECTION.KEY=VALUES", help="What to choose from, in the place of the usual; repeatable."),
]
MetricOption = Annotated[
    str | None, typer.Option(help="A column of metrics; else what the clients' models have on the test data.")
]
SeedsOption = Annotated[int, typer.Option(metavar="N", help="Seeds that finalists run with.")]
SourceOption = Annotated[
    Path | None,
    typer.Option("--from", metavar="RUN", help="A run on a fleet, whose measured seconds and failures count."),
]
RaceOption = Annotated[bool, typer.Option("--race/--no-race", help="Train the best, or stop at the schedules.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for the plan; else plans/NAME.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the plan in the folder.")]
WhyOption = Annotated[bool, typer.Option("--verbose", "-v", help="Also say which plans are dropped, and why.")]


@app.command()
def plan(
    experiment: ExperimentArg,
    seconds: SecondsOption = None,
    size: BytesOption = None,
    target: TargetOption = None,
    over: OverOption = None,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    metric: MetricOption = None,
    seeds: SeedsOption = 3,
    source: SourceOption = None,
    race: RaceOption = True,
    folder: OutOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: WhyOption = False,
) -> None:
    """Choose pattern and clustering for a network and a budget: by schedules first, then by short races.

    Example: atoll plan feduc-digits --only "CenSyn, ComAw" --seconds 200 --target 0.5 --out plans/digits
    """
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: must be at least 1")
    _check_numbers(seconds, size)
    runs = read_experiments(experiment, scale, changes, only)
    settings = _the_one(runs)
    from atoll.cli.plan_action import PlanOptions, plan_it
    from atoll.planner.budget import PlanBudget

    budget = PlanBudget(seconds, size, target, metric, is_regression=not runs[0].clients.dealt.data.classes)
    place = folder or Path("plans") / settings.name
    asked = PlanOptions(
        experiment, over or [], changes or [], scale, only, budget, seeds, source, place, as_json, quiet, verbose
    )
    plan_it(asked, runs[0], race, resume)


def _check_numbers(seconds: float | None, size: float | None) -> None:
    """Refuse a budget of nothing before anything is imported for it."""
    for option, value in (("--seconds", seconds), ("--bytes", size)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{option} {value:g}: must be a positive number")


def _the_one(runs: "list[Experiment]"):  # type: ignore[no-untyped-def]
    """Return the settings of the run that is planned."""
    from atoll.runs.titles import title_of

    if len(runs) > 1:
        told = "; ".join(title_of(each.settings) for each in runs)
        raise InputError(
            f"atoll plan: chooses for one run, the experiment has {len(runs)}; give one as --only, of {told}"
        )
    return runs[0].settings
