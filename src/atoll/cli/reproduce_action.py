"""What `atoll reproduce` does: run recipes again, judge the papers' claims, write the page."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from atoll.cli.common import err, out, print_json
from atoll.experiment.executor_choice import count_cores
from atoll.local.weights import require_device
from atoll.reproduce.claim_results import ClaimResult, gather
from atoll.reproduce.claims import PAPERS, Paper, read_paper
from atoll.reproduce.recipe_runs import (
    SEEDS,
    RecipeTask,
    begin_tasks,
    carry_out_all,
    find_missing,
    is_trained,
    plan_tasks,
)
from atoll.reproduce.record import RECORD, record
from atoll.reproduce.reproduce_progress import ReproduceProgress
from atoll.reproduce.verdict_wording import count, estimate_in_words, labels_of, value_in_words
from atoll.settings import experiment_file as config
from atoll.support.errors import InputError
from atoll.support.files import to_json, write_atomically
from atoll.support.untrusted import read_json
from atoll.support.wording import unknown

_NOTE = "reproduce.json"
_HALF = f".{_NOTE}.part"  # of a command that was killed as it began
_SCALES = ("tiny", "small", "paper")


@dataclass(frozen=True)
class ReproduceOptions:
    """What is to be reproduced: the words of the command line."""

    what: str
    scale: str
    seeds: int | None
    folder: Path | None
    run: bool
    jobs: int | None
    device: str
    as_json: bool
    quiet: bool
    verbose: bool

    @property
    def place(self) -> Path:
        """Return the folder of runs and page."""
        return self.folder or Path("runs") / f"reproduce-{self.what}-{self.scale}"

    @property
    def at_once(self) -> int:
        """Return how many runs go on at a time."""
        return self.jobs or count_cores()

    def command(self, seeds: int) -> str:
        """Return the command that goes on from here."""
        options = f"--scale {self.scale} --seeds {seeds} --out {shlex.quote(str(self.place))}"
        options += f" --device {self.device}" if self.device != "cpu" else ""
        return f"atoll reproduce {self.what} {options}"


def reproduce_papers(asked: ReproduceOptions) -> int:
    """Run a paper's figures and tables, or one recipe, and write the page; return how many runs failed.

    Raises:
        InputError: an option that makes no sense, or a folder that holds something else.
    """
    papers, recipes = _choose(asked.what)
    _check(asked)
    place = asked.place
    seeds = _claim_folder(asked)
    tasks = [
        task
        for recipe in recipes
        for task in plan_tasks(recipe, asked.scale, place / recipe, is_trained(recipe, papers), seeds, asked.device)
    ]
    progress = ReproduceProgress(tasks, asked.at_once)
    problems: dict[str, list[str]] = {}
    failures = 0
    if asked.run:
        begin_tasks(tasks)
        try:
            problems, failures = _run(tasks, progress, asked.quiet or asked.as_json, asked.verbose)
        except KeyboardInterrupt:
            err.print(f"interrupted, {progress}; to go on from here: {asked.command(seeds)}", markup=False)
            raise
    results = [
        gather(recipe, papers, asked.scale, place / recipe, problems.get(recipe, ()), seeds) for recipe in recipes
    ]
    made = record(results, asked.scale, seeds, progress)
    write_atomically(place / RECORD, json.dumps(made, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    page = _write_page(place, papers, results, asked.scale)
    if asked.as_json:
        told = {result.recipe: list(dict.fromkeys(result.problems)) for result in results}
        print_json({**made, "page": str(page), "problems": told})
    else:
        if any(result.verdicts for result in results):
            out.print(_table(results))
        out.print(f"{sum(len(r.verdicts) for r in results)} claims: {count(v for r in results for v in r.verdicts)}")
        out.print(f"Time: {progress}", markup=False)
        out.print(f"Page: {page}", markup=False)
    return failures


def _check(asked: ReproduceOptions) -> None:
    """Refuse options that make no sense."""
    if asked.scale not in _SCALES:
        raise InputError(f"--scale {asked.scale}: must be {', '.join(_SCALES)}")
    for option, number in (("--jobs", asked.jobs), ("--seeds", asked.seeds)):
        if number is not None and number < 1:
            raise InputError(f"{option} {number}: must be at least 1")
    if asked.run:
        require_device(asked.device)


def _choose(what: str) -> tuple[list[Paper], list[str]]:
    """Return the papers whose claims count, and the recipes to run.

    Raises:
        InputError: there is neither such a paper nor such a recipe.
    """
    if what == "all":
        papers = [read_paper(name) for name in PAPERS]
        own = [recipe for paper in papers for recipe in paper.recipes]
        return papers, own + [recipe for recipe in config.recipe_names() if recipe not in own]
    if what in PAPERS:
        return [read_paper(what)], read_paper(what).recipes
    if what in config.recipe_names():
        return [paper for paper in map(read_paper, PAPERS) if what in paper.recipes], [what]
    raise InputError(f"{what!r}: {unknown(what, ['all', *PAPERS, *config.recipe_names()])}")


def _claim_folder(asked: ReproduceOptions) -> int:
    """Write down scale and seeds of a folder's runs, since runs of different scales must not be compared.

    Returns how many seeds its runs have: those asked for, or else those that it has.

    Raises:
        InputError: its runs are of another scale or have more seeds, or it holds something else.
    """
    place, note = asked.place, asked.place / _NOTE
    before = _read_note(note) if note.is_file() else {}
    if before and before["scale"] != asked.scale:
        raise InputError(
            f"--out {place}: holds runs at scale {before['scale']}; add --scale {before['scale']}, or give another "
            "folder"
        )
    if not before and place.exists() and (place.is_file() or {each.name for each in place.iterdir()} - {_HALF}):
        raise InputError(f"--out {place}: holds other files than reproduced figures; give another folder")
    if not before and not asked.run:
        raise InputError(f"--out {place}: holds no reproduced figures; leave out --no-run to make them")
    held = before.get("seeds", 0)
    if asked.seeds is not None and asked.seeds < held:
        raise InputError(f"--seeds {asked.seeds}: {place} holds {held} seeds; leave it out, or give another folder")
    seeds = asked.seeds or held or SEEDS
    if asked.run and seeds != held:
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(note, to_json({"scale": asked.scale, "seeds": seeds}))
    return seeds


def _read_note(note: Path) -> dict[str, Any]:
    try:
        said = read_json(note, note.parent)
        if not isinstance(said, dict) or said.get("scale") not in _SCALES or not isinstance(said.get("seeds"), int):
            raise ValueError("it must hold a scale and a number of seeds")
    except (OSError, ValueError) as error:
        raise InputError(f"--out {note.parent}: its {_NOTE} cannot be read ({error}); give another folder") from error
    return said


def _run(
    tasks: Sequence[RecipeTask], progress: ReproduceProgress, quiet: bool, verbose: bool
) -> tuple[dict[str, list[str]], int]:
    """Carry the tasks out; return what went wrong by recipe, and how many failed."""
    problems: dict[str, list[str]] = {}
    missing = find_missing(tasks)
    for sentence in missing.values():
        err.print(f"not run: {sentence}", markup=False)
    for task in tasks:
        if task.settings[0].data.dataset in missing:
            problems.setdefault(task.recipe, []).append(missing[task.settings[0].data.dataset])
    going = [task for task in tasks if task.settings[0].data.dataset not in missing]
    failures = 0
    if not quiet:
        err.print(f"{len(going)} to do: {progress}", markup=False)
    for number, outcome in enumerate(carry_out_all(going, min(progress.jobs, max(1, len(going)))), start=1):
        task = outcome.task
        progress.take(task)
        if outcome.problem:
            failures += 1
            problems.setdefault(task.recipe, []).append(outcome.problem)
            err.print(f"failed: {outcome.problem}", markup=False)
        elif not quiet:
            told = "was finished" if outcome.was_finished else str(progress)
            err.print(f"[{number}/{len(going)}] {task.recipe}: {task.title} ({told})", markup=False)
        if verbose and outcome.executor:
            err.print(f"{task.recipe}, {task.title}: {outcome.executor}", markup=False)
    return problems, failures


def _write_page(place: Path, papers: Sequence[Paper], results: Sequence[ClaimResult], scale: str) -> Path:
    from atoll.reproduce.verdicts_page import render

    page = place / "index.html"
    write_atomically(page, render(papers, results, scale).encode())
    return page


def _table(results: Sequence[ClaimResult]) -> Table:
    table = Table("Claim", "The paper", "Ours", "Verdict", title=None)
    for result in results:
        for verdict in result.verdicts:
            claim = verdict.claim
            stated = ", ".join(value_in_words(claim, value) for value in claim.stated)
            pairs = zip(labels_of(claim), verdict.ours, strict=False)
            ours = ", ".join(f"{label} {estimate_in_words(claim, found)}" for label, found in pairs)
            where = ", ".join(filter(None, (claim.source, claim.panel)))
            says = f"{where}: {claim.says}" + (f" [{claim.reading}]" if claim.reading else "")
            table.add_row(*map(Text, (says, stated, ours, verdict.status)))
    return table
