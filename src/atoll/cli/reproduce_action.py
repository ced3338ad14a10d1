"""`atoll reproduce` once its options are read: run recipes, judge the papers' claims, write the page."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from atoll.cli.common import err, option_words, out, print_json, refuse_below_file
from atoll.cli.interrupts import Interrupts
from atoll.cli.options import refuse_about_runs
from atoll.experiment.executor_choice import count_cores
from atoll.local.weights import require_devices
from atoll.reproduce import recipe_runs as running
from atoll.reproduce.claim_results import ClaimResult, at_largest_scale, gather
from atoll.reproduce.claims import PAPERS, Paper, is_trained, read_paper
from atoll.reproduce.judging import Verdict
from atoll.reproduce.kept_runs import seeds_in
from atoll.reproduce.recipe_runs import RecipeTask
from atoll.reproduce.record import RECORD, record
from atoll.reproduce.reproduce_progress import ReproduceProgress
from atoll.reproduce.verdict_wording import count, estimate_in_words, labels_of, value_in_words
from atoll.reproduce.verdicts_page import render
from atoll.runs.titles import choose_runs, title_of
from atoll.settings import experiment_file as config
from atoll.support.environment import EVIDENCE
from atoll.support.errors import InputError, RunError, refusing
from atoll.support.files import make_folder, to_json, write_atomically
from atoll.support.untrusted import read_json
from atoll.support.wording import counted, unknown

_NOTE = "reproduce.json"
_HALF = f".{_NOTE}.part"  # of a command killed at its start
_SCALES = ("tiny", "small", "paper")
LARGEST = "largest"


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of the command."""

    what: str
    scale: str
    seeds: int | None
    folder: Path | None
    evidence: Path | None
    run: bool
    only: str | None
    jobs: int | None
    device: str
    as_json: bool
    quiet: bool
    verbose: bool

    @property
    def place(self) -> Path:
        """The folder for runs and page."""
        return self.folder or Path("runs") / f"reproduce-{self.what}-{self.scale}"

    @property
    def kept(self) -> Path | None:
        """Where runs are kept: as asked, or this folder's own evidence; None where there is none."""
        return self.evidence or (EVIDENCE if EVIDENCE.is_dir() else None)

    def chosen(self, tasks: Sequence[RecipeTask]) -> list[RecipeTask]:
        """Return the tasks that `only` names."""
        titles = set(map(title_of, choose_runs([each for task in tasks for each in task.settings], self.only)))
        return [task for task in tasks if not titles.isdisjoint(map(title_of, task.settings))]

    def command(self, seeds: int) -> str:
        """Return the command that resumes from here."""
        device = None if self.device == "cpu" else self.device
        given = (("--scale", self.scale), ("--seeds", seeds), ("--out", self.place), ("--device", device))
        words = option_words(*given, ("--evidence", self.evidence), ("--only", self.only or None))
        return shlex.join(["atoll", "reproduce", self.what, *words])


@dataclass(frozen=True)
class _Share:
    """A recipe at one scale: the folder of its runs, and whether evidence holds any."""

    recipe: str
    scale: str
    folder: Path
    held: bool


def _share_out(asked: ReproduceOptions, recipes: Sequence[str]) -> list[_Share]:
    """Return the recipes at the scale asked for; at the largest, at each scale that is kept, or else the smallest."""

    def share(name: str, scale: str) -> _Share:
        held = asked.kept is not None and seeds_in(asked.kept / name / scale) > 0
        return _Share(name, scale, asked.place / (scale if asked.scale == LARGEST else "") / name, held)

    if asked.scale != LARGEST:
        return [share(name, asked.scale) for name in recipes]
    each = {name: [share(name, scale) for scale in reversed(_SCALES)] for name in recipes}
    return [one for own in each.values() for one in [one for one in own if one.held] or own[-1:]]


def usual_scale(folder: Path | None, evidence: Path | None, run: bool) -> str:
    """Return the scale where none is given: the folder's, or tiny, or the largest that is kept if nothing is run."""
    if folder is not None and (folder / _NOTE).is_file():
        return str(_read_note(folder / _NOTE)["scale"])
    return "tiny" if run or not (evidence or EVIDENCE.is_dir()) else LARGEST


def reproduce_papers(asked: ReproduceOptions) -> int:
    """Run a paper's figures and tables, or one recipe, and write the page; return how many runs failed."""
    papers, recipes = _choose(asked.what)
    _check(asked)
    shares = _share_out(asked, recipes)
    seeds = _seeds_of(asked, any(share.held for share in shares))
    tasks, expected = list[RecipeTask](), list[int]()
    for share in shares:
        trained = is_trained(share.recipe, papers)
        number = seeds if asked.run or asked.seeds or not share.held else 1  # the page of what is kept asks for one
        own = running.plan_tasks(share.recipe, share.scale, share.folder, trained, number, asked.device, asked.kept)
        tasks += own
        expected.append(sum(len(task.settings) for task in own))
    chosen = asked.chosen(tasks)
    make_folder(asked.place)
    if asked.run or not (asked.place / _NOTE).exists():  # a page alone adds no seeds
        write_atomically(asked.place / _NOTE, to_json({"scale": asked.scale, "seeds": seeds if asked.run else 0}))
    refused = running.restore(tasks)  # first, since a run that is half restored is no run
    if asked.run:
        running.begin_tasks(tasks)
    progress = ReproduceProgress(chosen, asked.jobs or count_cores())
    problems: dict[str, list[str]] = {}
    for task in tasks:
        if task.folder in refused:
            problems.setdefault(task.recipe, []).append(refused[task.folder])
            err.print(refused[task.folder])
    failures = len(refused)
    if asked.run:
        chosen = [task for task in chosen if task.folder not in refused]
        try:
            with Interrupts() as interrupts:
                failures += _run(chosen, progress, problems, asked.quiet or asked.as_json, asked.verbose)
        except KeyboardInterrupt as error:
            err.print(f"interrupted, {progress}; to resume: {asked.command(seeds)}")
            raise typer.Exit(interrupts.exit_code) from error
    gathered: dict[str, list[ClaimResult]] = {}
    for share, number in zip(shares, expected, strict=True):
        known = problems.get(share.recipe, ())
        found = gather(share.recipe, papers, share.scale, share.folder, known, number, refused)
        for told in found.problems[len(known) :]:
            err.print(f"warning: {told}")
        gathered.setdefault(share.recipe, []).append(found)
    results = [at_largest_scale(own) for own in gathered.values()]
    _show(asked, papers, results, record(results, asked.scale, seeds, progress), progress)
    return failures


def _show(
    asked: ReproduceOptions,
    papers: Sequence[Paper],
    results: Sequence[ClaimResult],
    verdicts: dict[str, Any],
    progress: ReproduceProgress,
) -> None:
    """Write the verdicts and the page, and print them."""
    text = json.dumps(verdicts, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(asked.place / RECORD, text.encode() + b"\n")
    page = asked.place / "index.html"
    write_atomically(page, render(papers, results, asked.scale).encode())
    if asked.as_json:
        problems = {result.recipe: list(dict.fromkeys(result.problems)) for result in results}
        print_json({**verdicts, "page": str(page), "problems": problems})
        return
    found = [verdict for result in results for verdict in result.verdicts]
    if found:
        out.print(_table(found))
    out.print(f"{counted(len(found), 'claim')}: {count(found)}")
    out.print(f"Time: {progress}")
    out.print(f"Page: {page}")


def _check(asked: ReproduceOptions) -> None:
    """Reject invalid options."""
    refuse_below_file(asked.place)
    if asked.scale not in (*_SCALES, LARGEST):
        raise InputError(f"--scale {asked.scale}: must be {', '.join(_SCALES)}, or with --no-run {LARGEST}")
    if asked.scale == LARGEST and asked.run:
        raise InputError(f"--scale {LARGEST}: runs nothing; add --no-run, or give one of {', '.join(_SCALES)}")
    if not asked.run:
        refuse_about_runs(("--only", asked.only), ("--jobs", asked.jobs))
    if asked.evidence is not None and not asked.evidence.is_dir() and (asked.evidence.exists() or not asked.run):
        raise InputError(f"--evidence {asked.evidence}: is not a folder")
    if asked.run:
        require_devices(asked.device)


def _choose(what: str) -> tuple[list[Paper], list[str]]:
    """Return the papers whose claims to judge, and the recipes to run."""
    if what == "all":
        papers = [read_paper(name) for name in PAPERS]
        own = [recipe for paper in papers for recipe in paper.recipes]
        return papers, own + [recipe for recipe in config.recipe_names() if recipe not in own]
    if what in PAPERS:
        return [read_paper(what)], read_paper(what).recipes
    if what in config.recipe_names():
        return [paper for paper in map(read_paper, PAPERS) if what in paper.recipes], [what]
    raise InputError(f"{what!r}: {unknown(what, ['all', *PAPERS, *config.recipe_names()])}")


def _seeds_of(asked: ReproduceOptions, has_kept: bool) -> int:
    """Return the number of seeds: as asked, or by default the folder's, whose runs must be at this scale."""
    place, note = asked.place, asked.place / _NOTE
    before = _read_note(note) if note.is_file() else {}
    if not before:
        if place.exists() and (place.is_file() or {each.name for each in place.iterdir()} - {_HALF}):
            raise InputError(f"--out {place}: holds files other than reproduced figures; give another folder")
        if not asked.run and not has_kept:
            more = ", or give --evidence" if asked.kept is None else f"; {asked.kept} has none at this scale"
            raise InputError(f"--out {place}: holds no reproduced figures; leave out --no-run{more}")
    elif (scale := before["scale"]) != asked.scale:
        raise InputError(f"--out {place}: holds runs at scale {scale}; add --scale {scale}, or give another folder")
    held = before.get("seeds", 0)
    if asked.seeds is not None and asked.seeds < held:
        raise InputError(f"--seeds {asked.seeds}: {place} has {held} seeds already; omit it, or give another folder")
    return asked.seeds or held or running.SEEDS


def _read_note(note: Path) -> dict[str, Any]:
    with refusing(f"--out {note.parent}: its {_NOTE} cannot be read", ValueError, hint="; give another folder"):
        held: Any = read_json(note, note.parent)
        if (
            not isinstance(held, dict)
            or held.get("scale") not in (*_SCALES, LARGEST)
            or not isinstance(held.get("seeds"), int)
        ):
            raise ValueError("it must hold a scale and a number of seeds")
    return held


def _run(
    tasks: Sequence[RecipeTask], progress: ReproduceProgress, problems: dict[str, list[str]], quiet: bool, verbose: bool
) -> int:
    """Carry out the tasks; add what went wrong to `problems`, by recipe, and return how many failed."""
    missing = running.find_missing(tasks)
    if missing and not progress.finished and all(task.settings[0].data.dataset in missing for task in tasks):
        raise RunError("; ".join(missing.values()))
    for sentence in missing.values():
        err.print(f"not run: {sentence}")
    going, failures = list[RecipeTask](), 0
    for task in tasks:
        reason = None if task.folder in progress.finished else missing.get(task.settings[0].data.dataset)
        if reason is not None:
            problems.setdefault(task.recipe, []).append(reason)
        else:
            going.append(task)
    if not quiet:
        err.print(f"{len(going)} to do: {progress}")
    at_once = min(progress.jobs, max(1, len(going)))
    for number, outcome in enumerate(running.carry_out_all(going, at_once), start=1):
        task = outcome.task
        progress.take(task)
        if outcome.problem:
            failures += 1
            problems.setdefault(task.recipe, []).append(outcome.problem)
            err.print(f"failed: {outcome.problem}")
        elif not quiet:
            state = "already finished" if outcome.was_finished else str(progress)
            err.print(f"[{number}/{len(going)}] {task.recipe}: {task.title} ({state})")
        if verbose and outcome.executor:
            err.print(f"{task.recipe}, {task.title}: {outcome.executor}")
        if outcome.note:
            err.print(outcome.note)
    return failures


def _table(verdicts: Sequence[Verdict]) -> Table:
    table = Table("Claim", "The paper", "Ours", "Verdict", title=None)
    for verdict in verdicts:
        claim = verdict.claim
        stated = ", ".join(value_in_words(claim, value) for value in claim.stated)
        pairs = zip(labels_of(claim), verdict.ours, strict=False)
        ours = ", ".join(f"{label} {estimate_in_words(claim, found)}" for label, found in pairs)
        where = ", ".join(filter(None, (claim.source, claim.panel)))
        says = f"{where}: {claim.says}" + (f" [{claim.reading}]" if claim.reading else "")
        table.add_row(*map(Text, (says, stated, ours, verdict.status)))
    return table
