"""`atoll plan`."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from atoll.cli.common import app, only_one, read_experiments
from atoll.cli.options import ExperimentArg, JsonOption, OnlyOption, QuietOption, ScaleOption, SetOption
from atoll.support.errors import InputError

SecondsOption = Annotated[
    float | None, typer.Option(metavar="S", help="Budget of virtual time; by default run.virtual_seconds.")
]
BytesOption = Annotated[
    float | None, typer.Option("--bytes", metavar="B", help="Budget of bytes sent in all, up and down.")
]
TargetOption = Annotated[
    float | None, typer.Option(metavar="A", help="A test accuracy (or loss) to reach as early as possible.")
]
OverOption = Annotated[
    list[str] | None,
    typer.Option(metavar="SECTION.KEY=VALUES", help="Choose from these values of a setting instead. Repeatable."),
]
MetricOption = Annotated[
    str | None, typer.Option(help="The column of metrics to compare; by default the test score of clients' models.")
]
SeedsOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Number of seeds for the finalists; by default 3.")
]
SourceOption = Annotated[
    Path | None,
    typer.Option("--from", metavar="RUN", help="Use the seconds and failures measured in this run on a fleet."),
]
RaceOption = Annotated[bool, typer.Option("--race/--no-race", help="Train the best, or stop at the schedules.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for the plan; by default plans/NAME.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the plan in the folder.")]
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
    seeds: SeedsOption = None,
    source: SourceOption = None,
    race: RaceOption = True,
    folder: OutOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: WhyOption = False,
) -> None:
    """Choose pattern and clustering for a network and a budget: first by schedules, then by short races.

    Example: atoll plan feduc-digits --only "CenSyn, ComAw" --seconds 200 --target 0.5 --out plans/digits
    """
    for option, given in (("--out", folder), ("--resume", resume), ("--seeds", seeds)):
        if given and not race:
            raise InputError(f"{option}: --no-race trains and writes nothing; leave out one of them")
    seeds = seeds or 3
    for option, value in (("--seconds", seconds), ("--bytes", size)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{option} {value:g}: must be a positive number")
    found = only_one("atoll plan", read_experiments(experiment, scale, changes, only))
    from atoll.cli.plan_action import PlanOptions, plan_it
    from atoll.planner.budget import PlanBudget
    from atoll.sweep.goal import COSTS, require_column

    if metric in COSTS:
        raise InputError(f"--metric {metric}: is a cost; plans are judged by what is learned, such as test_accuracy")
    if metric is not None:
        require_column(metric, [found.settings])
    budget = PlanBudget(seconds, size, target, metric, is_regression=not found.clients.dealt.data.classes)
    with TemporaryDirectory() as aside:
        place = folder or (Path("plans") / found.settings.name if race else Path(aside))
        asked = PlanOptions(
            experiment, over or [], changes or [], scale, only, budget, seeds, source, place, as_json, quiet, verbose
        )
        plan_it(asked, found, race, resume)
