"""`atoll run`."""

import shlex
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.common import (
    app,
    end_interrupted,
    experiment_words,
    only_one,
    option_words,
    out,
    print_json,
    read_experiments,
    refuse_both,
    resumable,
)
from atoll.cli.interrupts import Interrupts
from atoll.cli.options import (
    ExperimentArg,
    JsonOption,
    OnlyOption,
    OverwriteOption,
    QuietOption,
    ResumeOption,
    RunsOption,
    ScaleOption,
    SetOption,
    VerboseOption,
)
from atoll.cli.run_progress import Runs, describe

if TYPE_CHECKING:
    from atoll.experiment.experiment import Experiment


@app.command()
def run(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    folder: RunsOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay the events of another run: its happened.jsonl or schedule.npz."),
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
    with Interrupts() as interrupts, suppress(KeyboardInterrupt), resumable(), view:
        for each, place in zip(runs, folders, strict=True):
            _run_one(each, place, resume, overwrite, view, verbose, interrupts)
            if interrupts.number is not None:
                break
    if interrupts.number is not None:
        words = ["atoll", "run", *experiment_words(experiment, scale, changes, only)]
        words += option_words(("--out", folder), ("--schedule", schedule), ("--json", as_json), ("--resume", True))
        end_interrupted(shlex.join(words), interrupts.exit_code)
    _show_results(folders, parent, as_json)


def _checked(runs: "list[Experiment]", schedule: Path | None) -> "list[Experiment]":
    """Return the runs, or the one run that replays a schedule, after checking that they can be carried out here."""
    from atoll.api import check_runs

    if schedule is not None:
        from atoll.runs.variants import replaying

        runs = [replaying(only_one("--schedule", runs), schedule)]
    check_runs(runs)
    return runs


def _show_results(folders: Sequence[Path], parent: Path, as_json: bool) -> None:
    """Print the table of finished runs; if there are several, also write a report beside them."""
    from atoll.report.reading.runs import find_runs
    from atoll.report.tables.run_tables import rounds_to_target
    from atoll.report.tables.spread import spread_over_seeds
    from atoll.report.tables.spread_tables import narrow_tables
    from atoll.report.tables.writing import as_dicts

    results = find_runs(folders)
    if len(folders) > 1:
        from atoll.report.report_files import write_report

        write_report(results, parent / "report")
    if as_json:
        print_json(as_dicts(rounds_to_target(results)))
        return
    for table in narrow_tables(rounds_to_target(results), spread_over_seeds(results)):
        out.print(table.as_rich())
    if len(folders) > 1:
        out.print(f"Figures and table: {parent / 'report'}")
    out.print(f"Results: {parent}")


def _run_one(
    experiment: "Experiment",
    place: Path,
    resume: bool,
    overwrite: bool,
    view: Runs,
    verbose: bool,
    interrupts: Interrupts,
) -> None:
    """Carry out a run until it ends or is interrupted."""
    from atoll.runs.run import run_events
    from atoll.trackers import tracked

    settings = experiment.settings
    title = " ".join(filter(None, (settings.panel, settings.label or settings.name)))
    view.begin(title)
    with closing(tracked(run_events(experiment, place, resume, overwrite), settings, place, resume)) as steps:
        interrupts.is_patient = False  # nothing is lost before training
        for progress in steps:
            if verbose and not interrupts.is_patient:
                view.say(f"run.executor = {settings.run.executor!r}: {experiment.execution.choice}")
            for warning in progress.warnings:
                view.say(f"warning: {f'{title}: ' if settings.label else ''}{warning}")
            if progress.stopped:
                view.say(f"stopped: {progress.stopped}")
            view.show(progress.events_done, progress.events, describe(progress.row) if progress.row else "")
            interrupts.is_patient = True
            if interrupts.ends(progress):
                break
