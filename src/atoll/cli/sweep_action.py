"""`atoll sweep` once its options are read: a grid of runs, or a search."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import typer

from atoll.cli.common import err, experiment_words, option_words, out, print_json
from atoll.cli.sweep_progress import Watched, watch
from atoll.experiment.experiment import Experiment
from atoll.report.tables.formats import TextTable, csv_table
from atoll.runs.fingerprint import digest
from atoll.runs.titles import require_one_run, title_of
from atoll.settings.experiment_file import make_runs, read_experiment
from atoll.settings.validation import Settings
from atoll.support.files import write_atomically
from atoll.sweep import sweep_folder as folders
from atoll.sweep import sweep_table as table
from atoll.sweep import trials as listing
from atoll.sweep import tuning
from atoll.sweep.axes import Axis, Interval, parse_axes, parse_space
from atoll.sweep.goal import Goal
from atoll.sweep.sweep_plan import Member, check_members, check_settings, make_members, require_effect
from atoll.sweep.sweep_worker import Job

Make = Callable[[Sequence[str], str], Settings]
"""Makes a trial's settings from ``section.key=value`` texts and a label."""


@dataclass(frozen=True)
class SweepOptions:
    """The options of the command."""

    experiment: str
    over: list[str]
    changes: list[str]
    scale: str | None
    only: str | None
    folder: Path
    jobs: int
    metric: str | None
    goal: Goal
    tune: bool
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

    def run_command(self, changes: Sequence[str], only: str | None = None, settings: Settings | None = None) -> str:
        """Return the command for one run beside the sweep, with those of its own changes that the settings have."""
        paths = [(change, [*map(str.strip, change.partition("=")[0].split("."))]) for change in self.changes]
        used = [c for c, path in paths if settings is None or path[-1] in dict(reduce(getattr, path[:-1], settings))]
        return shlex.join(["atoll", "run", *self._experiment((*used, *changes), only), "--out", f"{self.folder}-best"])

    def resume_command(self) -> str:
        """Return the command that resumes the sweep."""
        words = ["atoll", "sweep", *self._experiment(self.changes)]
        jobs = None if self.jobs == 1 else self.jobs
        words += option_words(("--over", self.over), ("--jobs", jobs), ("--out", self.folder))
        words += option_words(("--metric", self.metric), ("--target", self.goal.target))
        words += option_words(("--tune", self.tune), ("--trials", self.trials), ("--part", self.part))
        return shlex.join([*words, *option_words(("--json", self.as_json), ("--resume", True))])

    def _experiment(self, changes: Sequence[str], only: str | None = None) -> list[str]:
        return experiment_words(self.experiment, self.scale, changes, only or self.only)


def usual_metric(settings: Settings) -> str:
    """Return the metric compared by default."""
    return "test_accuracy" if Experiment(settings).clients.dealt.data.classes else "test_loss"


def run_all(asked: SweepOptions, runs: Sequence[Settings], part: slice, resume: bool) -> Watched:
    """Run every combination, or a part of them, and show each setting's metric over seeds."""
    members, note = _grid(asked, runs)
    folders.require_folder(asked.folder, note, resume or asked.part is not None)
    for warning in require_effect(note["over"], members, asked.goal):
        err.print(f"warning: {warning}")
    mine = members[part]
    todo = _unfinished(asked, mine)
    own = {each.name for each in mine}
    for each in members:
        folders.require_same(asked.folder / each.name, each.settings, goes_on=bool(todo), is_mine=each.name in own)
    at_once = min(asked.jobs, len(todo))
    jobs = (Job(each.name, each.settings, asked.folder / each.name, asked.modules, at_once) for each in todo)
    how = at_once, len(mine), len(mine) - len(todo), asked.goal.metric, asked.is_quiet, asked.verbose
    check = partial(check_members, todo)
    with (folders.claimed if asked.part is None else folders.shared)(asked.folder, note, check):
        watched = watch(jobs, *how)
        if watched.exit_code:
            return watched
        with nullcontext() if asked.part is None else folders.in_turn(asked.folder):
            lines = table.sum_up(asked.folder, members, asked.goal)
            _write_tables(asked, table.table_of(lines, asked.goal), table.as_dicts(lines, asked.goal))
    _show_lines(asked, watched, lines, members)
    if watched.failed:
        raise typer.Exit(1)
    return watched


def _grid(asked: SweepOptions, runs: Sequence[Settings]) -> tuple[list[Member], dict[str, Any]]:
    """Return the runs of a grid, and the note for its folder."""
    axes = parse_axes(asked.over)
    titles = [title_of(settings) for settings in runs] if asked.only is not None else []
    members = make_members(read_experiment(asked.experiment), axes, asked.scale, asked.changes, titles)
    named = {member.name: {"run": member.run, **member.values} for member in members}
    return members, {"kind": "grid", **_note(asked), "over": {axis.name: axis.texts for axis in axes}, "runs": named}


def _unfinished(asked: SweepOptions, members: Sequence[Member]) -> list[Member]:
    return [member for member in members if not folders.is_over(asked.folder / member.name, member.settings)]


def _show_lines(asked: SweepOptions, watched: Watched, lines: Sequence[table.Line], members: Sequence[Member]) -> None:
    """Print the table of a grid, and the command of its best setting unless other parts are still to come."""
    left = len(_unfinished(asked, members)) if asked.part else 0
    command = None
    if not left and (best := next((line for line in lines if line.is_best_last), None)):
        values = [f"{name}={table.show_value(value)}" for name, value in best.values.items()]
        its = (each for each in members if each.run == best.run and each.values.items() >= best.values.items())
        command = asked.run_command(values, best.run, next(its).settings)
    if asked.as_json:
        _print_json(asked, watched, command, settings=table.as_dicts(lines, asked.goal))
        return
    out.print(table.table_of(lines, asked.goal).as_rich())
    if left:
        out.print(f"{left} of {len(members)} runs are not finished yet, in this part or in others")
    _print_end(asked, watched, command)


def _write_tables(asked: SweepOptions, shown: TextTable, records: Sequence[dict[str, Any]]) -> None:
    write_atomically(asked.folder / "table.md", shown.as_markdown().encode())
    write_atomically(asked.folder / "table.csv", csv_table(records).encode())


def search(asked: SweepOptions, runs: Sequence[Settings], resume: bool) -> Watched:
    """Search for the best setting, and show the trials."""
    tuning.require_optuna()
    space = parse_space(asked.over)
    require_one_run("--tune", runs, "choose one with --only")
    make = _maker(asked, title_of(runs[0]))
    _check_space(space, make, asked.goal)
    searched = {each.name: tuning.describe(each) for each in space}
    note = {"kind": "search", **_note(asked), "over": searched, "settings": digest(runs[0]), "runs": {}}
    note["run.stop_at"] = runs[0].run.stop_at  # no part of the digest
    folders.require_folder(asked.folder, note, resume)
    before = folders.read_note(asked.folder) or {}
    with folders.claimed(asked.folder, note | {"runs": before.get("runs", {})}):  # a search adds runs as it goes
        study = tuning.Search(asked.folder, space, asked.goal, make, runs[0].rounds, runs[0].seed)
        count, trials = asked.trials or 20, study.trials()
        done = sum(each.state != "running" for each in trials)
        for each in trials:
            made = make([f"{name}={text}" for name, text in each.texts.items()], "")
            folders.require_same(asked.folder / each.name, made, goes_on=done < max(count, len(trials)))

        def write_down() -> None:
            note["runs"] = {each.name: dict(each.texts) for each in study.trials()}
            folders.write_note(asked.folder, note)

        write_down()  # with a trial that was proposed just before a kill
        jobs = study.jobs(count, asked.modules, asked.jobs, write_down)
        how = asked.goal.metric, asked.is_quiet, asked.verbose
        watched = watch(jobs, asked.jobs, count, done, *how, study.judge, study.settle)
        if watched.exit_code:
            return watched
        found = study.trials(), study.best()
    _show_trials(asked, watched, *found)
    return watched


def _check_space(space: Sequence[Axis | Interval], make: Make, goal: Goal) -> None:
    """Check that trials can run and, when only one setting is searched, that it has an effect.

    With several, a setting without effect beside one value of another may have an effect beside the next.
    """
    check_settings({", ".join(corner): make(corner, "") for corner in tuning.corners(space)})
    if len(space) == 1:
        name, ends = space[0].name, tuning.ends(space[0])
        require_effect([name], [Member("", "", {name: end}, make([f"{name}={end}"], "")) for end in ends], goal)


def _maker(asked: SweepOptions, title: str) -> Make:
    """Return a function that makes a trial's settings from its changes and its label."""
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
    shown, records = listing.table_of(found, best, asked.goal), listing.as_dicts(found, best, asked.goal)
    _write_tables(asked, shown, records)
    command = asked.run_command([f"{name}={text}" for name, text in best.texts.items()]) if best else None
    if asked.as_json:
        _print_json(asked, watched, command, trials=records)
    else:
        out.print(replace(shown, note="").as_rich())
        _print_end(asked, watched, command)
    if best is None:
        raise typer.Exit(1)


def _note(asked: SweepOptions) -> dict[str, Any]:
    """Return what ``sweep.json`` says of any sweep."""
    given = {"experiment": asked.experiment, "scale": asked.scale, "set": asked.changes, "only": asked.only}
    return {**given, "metric": asked.goal.metric, "target": asked.goal.target}


def _print_errors(watched: Watched) -> None:
    for name, error in watched.failed.items():
        err.print(f"error: {name}: {error}")


def _print_end(asked: SweepOptions, watched: Watched, command: str | None) -> None:
    _print_errors(watched)
    if command:
        out.print(f"Best: {command}")
    out.print(f"Results: {asked.folder}")
    words = ["atoll", "report", str(asked.folder), "--out", str(asked.folder / "report")]
    out.print(f"Figures and tables: {shlex.join(words)}")


def _print_json(asked: SweepOptions, watched: Watched, command: str | None, **rows: Any) -> None:
    _print_errors(watched)
    told = {"failed": watched.failed, "best": command, "folder": str(asked.folder)}
    print_json({"metric": asked.goal.metric, **rows, **told})
