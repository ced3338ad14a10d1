"""`atoll run`."""

import shlex
from collections.abc import Sequence
from contextlib import closing
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
    VerboseOption,
    app,
    check_runs,
    err,
    experiment_words,
    out,
    print_json,
    read_experiments,
    refuse_both,
    resumable,
)
from atoll.cli.interrupts import Interrupts
from atoll.cli.run_progress import Runs, describe
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from atoll.experiment.experiment import Experiment


@app.command()
def run(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for the results; else runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay what happened: happened.jsonl or schedule.npz of another run."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run an experiment.

    Example: atoll run quickstart --set method.name=fedavg --out runs/fedavg
    """
    refuse_both(resume, overwrite)
    runs = _checked(read_experiments(experiment, scale, changes, only), schedule)
    from atoll.runs.run_folders import begin_folders, name_folders, prepare_folders

    parent = folder or Path("runs") / runs[0].settings.name
    names = name_folders(runs)
    folders = prepare_folders(names, parent, resume, overwrite)
    begin_folders(parent, names)
    view = Runs(len(runs), quiet or as_json)
    with Interrupts() as interrupts:
        try:
            with resumable(), view:
                for each, place in zip(runs, folders, strict=True):
                    _run_one(each, place, resume, overwrite, view, verbose, interrupts)
                    if interrupts.number is not None:
                        break
        except KeyboardInterrupt:
            pass
    if interrupts.number is not None:
        again = _command(experiment, changes, scale, only, folder, schedule, as_json)
        err.print(f"interrupted; to go on from here: {again}", markup=False)
        raise typer.Exit(interrupts.exit_code)
    _tell_results(folders, parent, as_json)


def _checked(runs: "list[Experiment]", schedule: Path | None) -> "list[Experiment]":
    """Return the runs, or the one run that replays a schedule, once all of them can be carried out here.

    Raises:
        InputError: one of them cannot, or several are to replay one schedule.
    """
    from atoll.experiment.executor_choice import require_no_fleet
    from atoll.runs.variants import replaying

    if schedule is not None:
        if len(runs) > 1:
            raise InputError(f"--schedule: is for one run, the experiment has {len(runs)}; choose one with --only")
        runs = [replaying(runs[0], schedule)]
    for each in runs:
        require_no_fleet(each.settings.run)
    check_runs(runs)
    return runs


def _tell_results(folders: Sequence[Path], parent: Path, as_json: bool) -> None:
    """Print the table of finished runs; of several also write the report beside them."""
    from atoll.report.reading.runs import find_runs
    from atoll.report.tables.run_tables import rounds_to_target
    from atoll.report.tables.spread import spread_over_seeds, tables_as_rich
    from atoll.report.tables.writing import as_dicts

    results = find_runs(folders)
    if len(folders) > 1:
        from atoll.report.report_files import write_report

        write_report(results, parent / "report")
    if as_json:
        print_json(as_dicts(rounds_to_target(results)))
        return
    for table in tables_as_rich(rounds_to_target(results), spread_over_seeds(results)):
        out.print(table)
    if len(folders) > 1:
        out.print(f"Figures and table: {parent / 'report'}", markup=False)
    out.print(f"Results: {parent}", markup=False)


def _command(
    experiment: str,
    changes: Sequence[str] | None,
    scale: str | None,
    only: str | None,
    folder: Path | None,
    schedule: Path | None,
    as_json: bool,
) -> str:
    """Return the command that goes on with these runs."""
    words = ["atoll", "run", *experiment_words(experiment, scale, changes, only)]
    for option, value in (("--out", folder), ("--schedule", schedule)):
        words += [] if value is None else [option, str(value)]
    return shlex.join([*words, *(["--json"] if as_json else []), "--resume"])


def _run_one(
    experiment: "Experiment",
    place: Path,
    resume: bool,
    overwrite: bool,
    view: Runs,
    verbose: bool,
    interrupts: Interrupts,
) -> None:
    """Carry a run out to its end, or to the interrupt."""
    from atoll.runs.run import run_events
    from atoll.trackers import tracked

    settings = experiment.settings
    view.begin(" ".join(filter(None, (settings.panel, settings.label or settings.name))))
    with closing(tracked(run_events(experiment, place, resume, overwrite), settings, place, resume)) as steps:
        interrupts.is_patient, says = False, not verbose  # nothing is lost before training
        for progress in steps:
            if not says:
                view.say(f"run.executor = {settings.run.executor!r}: {experiment.executor_choice}")
                says = True
            for warning in progress.warnings:
                view.say(f"warning: {warning}")
            view.show(progress.events_done, progress.events, describe(progress.row) if progress.row else "")
            interrupts.is_patient = True
            is_over = progress.events_done == progress.events
            if interrupts.number is not None and progress.is_settled and not is_over:
                break
