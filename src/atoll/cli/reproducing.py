"""What `atoll reproduce` does: run recipes again, judge the papers' claims, write the page."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from atoll.cli.common import err, out, print_json
from atoll.experiment import file as config
from atoll.experiment.executor import count_cores
from atoll.experiment.wording import unknown
from atoll.reproduce.claims import PAPERS, Paper, read_paper
from atoll.reproduce.results import Result, gather
from atoll.reproduce.running import Task, carry_out_all, find_missing, is_trained, plan_tasks
from atoll.reproduce.wording import MARKS, count, labels_of, value_in_words
from atoll.support.errors import InputError
from atoll.support.files import to_json, write_atomically

_NOTE = "reproduce.json"
_SCALES = ("tiny", "small", "paper")


def reproduce_papers(
    what: str, scale: str, folder: Path | None, resume: bool, run: bool, jobs: int | None, as_json: bool
) -> int:
    """Run a paper's figures and tables, or one recipe, and write the page; return how many runs failed.

    Raises:
        InputError: an option that makes no sense, or a folder that holds something else.
    """
    papers, recipes = _choose(what)
    if scale not in _SCALES:
        raise InputError(f"--scale {scale}: must be {', '.join(_SCALES)}")
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: must be at least 1")
    place = folder or Path("runs") / f"reproduce-{what}-{scale}"
    _claim_folder(place, scale, run)
    problems: dict[str, list[str]] = {}
    if run:
        tasks = [
            task
            for recipe in recipes
            for task in plan_tasks(recipe, scale, place / recipe, is_trained(recipe, papers), resume)
        ]
        try:
            problems, failures = _run(tasks, jobs or count_cores(), as_json)
        except KeyboardInterrupt:
            options = f"--scale {scale} --out {shlex.quote(str(place))}"
            err.print(f"interrupted; to go on from here: atoll reproduce {what} {options} --resume", markup=False)
            raise
    else:
        failures = 0
    results = [gather(recipe, papers, scale, place / recipe, problems.get(recipe, ())) for recipe in recipes]
    page = _write_page(place, papers, results, scale)
    if as_json:
        print_json(_as_data(results, scale, page))
    else:
        out.print(_table(results))
        out.print(f"{sum(len(r.verdicts) for r in results)} claims: {count(v for r in results for v in r.verdicts)}")
        out.print(f"Page: {page}", markup=False)
    return failures


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


def _claim_folder(place: Path, scale: str, run: bool) -> None:
    """Write down the scale of a folder's runs, since runs of different scales must not be compared.

    Raises:
        InputError: its runs are of another scale, or it holds something else.
    """
    note = place / _NOTE
    if note.is_file():
        before = json.loads(note.read_bytes()).get("scale")
        if before != scale:
            raise InputError(
                f"--out {place}: holds runs at scale {before}; add --scale {before}, or give another folder"
            )
        return
    if place.is_file() or (place.is_dir() and any(place.iterdir())):
        raise InputError(f"--out {place}: holds other files than reproduced figures; give another folder")
    if not run:
        raise InputError(f"--out {place}: holds no reproduced figures; leave out --no-run to make them")
    place.mkdir(parents=True, exist_ok=True)
    write_atomically(note, to_json({"scale": scale}))


def _run(tasks: Sequence[Task], jobs: int, quiet: bool) -> tuple[dict[str, list[str]], int]:
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
    for number, outcome in enumerate(carry_out_all(going, min(jobs, max(1, len(going)))), start=1):
        task = outcome.task
        if outcome.problem:
            failures += 1
            problems.setdefault(task.recipe, []).append(outcome.problem)
            err.print(f"failed: {outcome.problem}", markup=False)
        elif not quiet:
            told = " (was finished)" if outcome.was_finished else ""
            err.print(f"[{number}/{len(going)}] {task.recipe}: {task.title}{told}", markup=False)
    return problems, failures


def _write_page(place: Path, papers: Sequence[Paper], results: Sequence[Result], scale: str) -> Path:
    from atoll.reproduce.page import render

    page = place / "index.html"
    write_atomically(page, render(papers, results, scale).encode())
    return page


def _table(results: Sequence[Result]) -> Table:
    table = Table("Claim", "The paper", "Ours", "Verdict", title=None)
    for result in results:
        for verdict in result.verdicts:
            claim = verdict.claim
            stated = ", ".join(value_in_words(claim, value) for value in claim.stated)
            pairs = zip(labels_of(claim), verdict.ours, strict=False)
            ours = ", ".join(f"{label} {value_in_words(claim, value)}" for label, value in pairs)
            where = ", ".join(filter(None, (claim.source, claim.panel)))
            table.add_row(f"{where}: {claim.says}", stated, ours, MARKS[verdict.status])
    return table


def _as_data(results: Sequence[Result], scale: str, page: Path) -> dict[str, Any]:
    return {
        "scale": scale,
        "page": str(page),
        "recipes": [
            {
                "recipe": result.recipe,
                "runs": result.expected,
                "finished": result.finished,
                "problems": list(dict.fromkeys(result.problems)),
                "seconds": None if result.cost is None else result.cost.seconds,
                "paper_seconds": None if result.cost is None else result.cost.paper_seconds,
                "claims": [
                    {
                        "source": verdict.claim.source,
                        "panel": verdict.claim.panel,
                        "says": verdict.claim.says,
                        "runs": list(labels_of(verdict.claim)),
                        "stated": list(verdict.claim.stated),
                        "ours": list(verdict.ours),
                        "status": verdict.status,
                        "reason": verdict.reason,
                    }
                    for verdict in result.verdicts
                ],
            }
            for result in results
        ],
    }
