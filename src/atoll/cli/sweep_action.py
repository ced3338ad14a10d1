"""What `atoll sweep` does once its options are read: a grid of runs, or a search."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from atoll.cli.common import err, experiment_words, out, print_json
from atoll.cli.sweep_progress import Watched, watch
from atoll.experiment.experiment import Experiment
from atoll.report.tables.formats import rich_table
from atoll.runs.fingerprint import digest
from atoll.runs.run_folder import RunFolder
from atoll.runs.titles import title_of
from atoll.settings.experiment_file import make_runs, read_experiment
from atoll.settings.sections import Settings
from atoll.support.errors import InputError
from atoll.support.files import write_atomically
from atoll.sweep import sweep_plan as planning
from atoll.sweep import sweep_table as table
from atoll.sweep import trials as listing
from atoll.sweep import tuning
from atoll.sweep.axes import parse_axes, parse_space
from atoll.sweep.effect import require_effect
from atoll.sweep.goal import Goal
from atoll.sweep.sweep_worker import Job


@dataclass(frozen=True)
class SweepOptions:
    """What the command was asked for."""

    experiment: str
    over: list[str]
    changes: list[str]
    scale: str | None
    only: str | None
    folder: Path
    jobs: int
    goal: Goal
    trials: int | None
    part: str | None
    as_json: bool
    quiet: bool
    verbose: bool

    @property
    def modules(self) -> tuple[Path, ...]:
        """Where the user's own modules are found."""
        return (Path(self.experiment).parent.resolve(),)

    @property
    def is_quiet(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.as_json

    def run_command(self, changes: Sequence[str] = (), only: str | None = None) -> str:
        """Return the command that carries out one run."""
        return shlex.join(["atoll", "run", *self._experiment(changes, only)])

    def resume_command(self) -> str:
        """Return the command that goes on with the sweep."""
        words = ["atoll", "sweep", *self._experiment()]
        words += [word for over in self.over for word in ("--over", over)]
        words += [] if self.jobs == 1 else ["--jobs", str(self.jobs)]
        words += ["--out", str(self.folder), "--metric", self.goal.metric]
        words += [] if self.goal.target is None else ["--target", f"{self.goal.target:g}"]
        words += [] if self.trials is None else ["--tune", "--trials", str(self.trials)]
        words += [] if self.part is None else ["--part", self.part]
        return shlex.join([*words, *(["--json"] if self.as_json else []), "--resume"])

    def _experiment(self, changes: Sequence[str] = (), only: str | None = None) -> list[str]:
        return experiment_words(self.experiment, self.scale, (*self.changes, *changes), only or self.only)


def usual_metric(settings: Settings) -> str:
    """Return what is compared unless the user says otherwise."""
    return "test_accuracy" if Experiment(settings).clients.dealt.data.classes else "test_loss"


def run_all(asked: SweepOptions, runs: Sequence[Settings], part: slice, resume: bool) -> Watched:
    """Run every combination, or a part of them, and show each setting's metric over seeds."""
    axes = parse_axes(asked.over)
    titles = [title_of(settings) for settings in runs] if asked.only is not None else []
    members = planning.make_members(read_experiment(asked.experiment), axes, asked.scale, asked.changes, titles)
    told = {member.name: {"run": member.run, **member.values} for member in members}
    note = {"kind": "grid", **_note(asked), "over": {axis.name: axis.texts for axis in axes}, "runs": told}
    planning.require_folder(asked.folder, note, resume or asked.part is not None)
    for told_once in require_effect([axis.name for axis in axes], members, asked.goal):
        err.print(f"warning: {told_once}", markup=False)
    mine = members[part]
    for member in mine:
        planning.require_same(asked.folder / member.name, member.settings)
    todo = [member for member in mine if not RunFolder(asked.folder / member.name).is_finished]
    planning.check_members(todo)
    at_once = min(asked.jobs, len(todo))
    jobs = (Job(each.name, each.settings, asked.folder / each.name, asked.modules, at_once) for each in todo)
    done = len(mine) - len(todo)
    with planning.claimed(asked.folder, note) if asked.part is None else planning.shared(asked.folder, note):
        watched = watch(jobs, at_once, len(mine), done, asked.goal.metric, asked.is_quiet, asked.verbose)
        if watched.exit_code:
            return watched
        with nullcontext() if asked.part is None else planning.in_turn(asked.folder):
            lines = _write_table(asked, members)
    left = sum(not RunFolder(asked.folder / member.name).is_finished for member in members) if asked.part else 0
    best = next((line for line in lines if line.is_best_last), None) if not left else None
    values = [f"{name}={table.show_value(value)}" for name, value in best.values.items()] if best else []
    command = asked.run_command(values, best.run if best else None) if best else None
    if asked.as_json:
        _print_json(asked, watched, command, settings=table.as_dicts(lines, asked.goal))
    else:
        out.print(rich_table(*table.cells_of(lines, asked.goal), note=table.note_of(asked.goal)))
        if left:
            out.print(f"{left} of {len(members)} runs are not finished yet, in this part or in others")
        _print_end(asked, watched, command)
    if watched.failed:
        raise typer.Exit(1)
    return watched


def _write_table(asked: SweepOptions, members: Sequence[planning.Member]) -> list[table.Line]:
    """Sum up the runs that are finished."""
    lines = table.sum_up(asked.folder, members, asked.goal)
    write_atomically(asked.folder / "table.md", table.as_markdown(lines, asked.goal).encode())
    write_atomically(asked.folder / "table.csv", table.as_csv(lines, asked.goal).encode())
    return lines


def search(asked: SweepOptions, runs: Sequence[Settings], resume: bool) -> Watched:
    """Search for the best setting, and show the trials."""
    tuning.require_optuna()
    space = parse_space(asked.over)
    if len(runs) > 1:
        told = "; ".join(title_of(settings) for settings in runs)
        raise InputError(f"--tune: the experiment has {len(runs)} runs; choose one with --only, of {told}")
    make = _maker(asked, title_of(runs[0]))
    planning.check_settings({", ".join(corner): make(corner, "") for corner in tuning.corners(space)})
    if len(space) == 1:  # else what one value ignores another may not
        name, ends = space[0].name, tuning.ends(space[0])
        alone = [planning.Member("", "", {name: text}, make([f"{name}={text}"], "")) for text in ends]
        require_effect([name], alone, asked.goal)
    searched = {each.name: tuning.describe(each) for each in space}
    note = {"kind": "search", **_note(asked), "over": searched, "settings": digest(runs[0]), "runs": {}}
    planning.require_folder(asked.folder, note, resume)
    count = asked.trials or 0
    with planning.claimed(asked.folder, planning.with_runs_before(asked.folder, note)):
        study = tuning.Search(asked.folder, space, asked.goal, make, runs[0].rounds, runs[0].seed)

        def write_down() -> None:
            note["runs"] = {each.name: dict(each.texts) for each in study.trials()}
            planning.write_note(asked.folder, note)

        done = sum(each.state != "running" for each in study.trials())
        jobs = study.jobs(count, asked.modules, asked.jobs, write_down)
        how = asked.goal.metric, asked.is_quiet, asked.verbose
        watched = watch(jobs, asked.jobs, count, done, *how, study.judge, study.settle)
        if watched.exit_code:
            return watched
        found, best = study.trials(), study.best()
    _show_trials(asked, watched, found, best)
    if best is None:
        raise typer.Exit(1)
    return watched


def _maker(asked: SweepOptions, title: str) -> Callable[[Sequence[str], str], Settings]:
    """Return what makes the settings of a trial, from its changes and its label."""
    experiment = read_experiment(asked.experiment)

    def make(changes: Sequence[str], label: str) -> Settings:
        made = make_runs(experiment, asked.scale, [*asked.changes, *changes])
        (settings,) = (each for each in made if title_of(each) == title)
        return settings.model_copy(update={"label": label})

    return make


def _show_trials(
    asked: SweepOptions, watched: Watched, found: Sequence[listing.Trial], best: listing.Trial | None
) -> None:
    """Write and print the trials, and the best one's command."""
    write_atomically(asked.folder / "table.md", listing.as_markdown(found, best, asked.goal).encode())
    write_atomically(asked.folder / "table.csv", listing.as_csv(found, best, asked.goal).encode())
    command = asked.run_command([f"{name}={text}" for name, text in best.texts.items()]) if best else None
    if asked.as_json:
        _print_json(asked, watched, command, trials=listing.as_dicts(found, best, asked.goal))
    else:
        out.print(rich_table(*listing.cells_of(found, best, asked.goal)))
        _print_end(asked, watched, command)


def _note(asked: SweepOptions) -> dict[str, Any]:
    """Return what ``sweep.json`` tells of any sweep."""
    told = {"experiment": asked.experiment, "scale": asked.scale, "set": asked.changes, "only": asked.only}
    return {**told, "metric": asked.goal.metric, "target": asked.goal.target}


def _print_end(asked: SweepOptions, watched: Watched, command: str | None) -> None:
    for name, error in watched.failed.items():
        err.print(f"error: {name}: {error}", markup=False)
    if command:
        out.print(f"Best: {command}", markup=False)
    out.print(f"Results: {asked.folder}", markup=False)


def _print_json(asked: SweepOptions, watched: Watched, command: str | None, **told: Any) -> None:
    for name, error in watched.failed.items():
        err.print(f"error: {name}: {error}", markup=False)
    told |= {"failed": watched.failed, "best": command, "folder": str(asked.folder)}
    print_json({"metric": asked.goal.metric, **told})
