"""MkDocs hook: puts the verdicts on the papers' claims, from `atoll reproduce`, into papers/verdicts.md.

Claims are judged from the runs that are kept in `evidence/`. A claim measured at several scales has a row for each,
first the largest with three seeds or more, and is counted once, at that one; exploratory claims are counted apart.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from atoll.report.tables.formats import Cells, TextTable
from atoll.reproduce.claim_results import gather
from atoll.reproduce.claims import PAPERS, Paper, is_trained, read_paper
from atoll.reproduce.evidence import LEAST_SEEDS
from atoll.reproduce.kept_runs import seeds_in
from atoll.reproduce.recipe_runs import SEEDS, plan_tasks, restore
from atoll.reproduce.record import record_recipe
from atoll.reproduce.verdict_wording import NONE, STATUSES
from atoll.support import environment

EVIDENCE = Path(__file__).parents[1] / environment.EVIDENCE
SCALES = ("paper", "small", "tiny")
MARK = "<!-- the verdicts -->"
HEADS = ("Claim", "The paper", "Measured", "Verdict", "Scale")
STATED = HEADS.index("The paper")

Row = dict[str, Any]
"""A verdict as `atoll reproduce` records it, with its scale and number of seeds; empty for a claim without one."""


class Key(NamedTuple):
    """The fields that identify a claim."""

    recipe: str
    source: str
    panel: str
    says: str
    reading: str


Rows = Sequence[tuple[Key, Row]]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark by a table for each paper; MkDocs calls this for every page."""
    if MARK not in markdown:
        return markdown
    return markdown.replace(MARK, tables(judge_kept(EVIDENCE)))


def judge_kept(evidence: Path) -> list[dict[str, Any]]:
    """Return the verdicts of the kept runs, as if `atoll reproduce` had written a file for each recipe and scale.

    Raises:
        ValueError: a kept run does not fit its recipe.
    """
    papers = [read_paper(name) for name in PAPERS]
    found = []
    with TemporaryDirectory() as folder:
        for place in sorted({file.parent for file in evidence.glob("*/*/*.json.gz")}):
            recipe, scale, out = place.parent.name, place.name, Path(folder) / place.name / place.parent.name
            seeds = seeds_in(evidence / recipe / scale)
            tasks = plan_tasks(recipe, scale, out, is_trained(recipe, papers), 1, evidence=evidence)
            if refused := restore(tasks):
                raise ValueError(next(iter(refused.values())))
            judged = record_recipe(gather(recipe, papers, scale, out, expected=len(tasks)))
            found.append({"scale": scale, "seeds": seeds, "recipes": [judged]})
    return found


def tables(files: Sequence[dict[str, Any]]) -> str:
    """Return the tables as Markdown.

    Raises:
        ValueError: a verdict is on a claim that does not exist.
    """
    papers = [read_paper(name) for name in PAPERS]
    measured = _by_claim(files)
    known = {key for paper in papers for key in _keys(paper)}
    if stale := [key for key in measured if key not in known]:
        raise ValueError(f"no claim is called {', '.join(stale[0])}")
    return "\n\n".join(part for paper in papers for part in _sections(paper, measured))


def _by_claim(files: Sequence[dict[str, Any]]) -> dict[Key, list[Row]]:
    """Return the verdicts on each claim that was run, the largest scale first; with too few seeds, last."""
    found: dict[Key, list[Row]] = {}
    for file in sorted(files, key=lambda file: SCALES.index(file["scale"])):
        for recipe in file["recipes"]:
            for claim in recipe["claims"]:
                if claim["status"] != "not run":
                    key = Key(recipe["recipe"], claim["source"], claim["panel"], claim["says"], claim["reading"])
                    found.setdefault(key, []).append({**claim, "scale": file["scale"], "of": file["seeds"]})
    return {key: sorted(rows, key=lambda row: row["seeds"] < LEAST_SEEDS) for key, rows in found.items()}


def _keys(paper: Paper) -> list[Key]:
    return list(dict.fromkeys(Key(c.recipe, c.source, c.panel, c.says, c.reading) for c in paper.claims))


def _sections(paper: Paper, measured: dict[Key, list[Row]]) -> Iterator[str]:
    """Yield a paper's heading, how many verdicts of each kind its recipes have, and a table for each recipe."""
    rows = [(key, row) for key in _keys(paper) for row in measured.get(key) or [{}]]
    recipes = {key.recipe: [each for each in rows if each[0].recipe == key.recipe] for key, _ in rows}
    apart = {Key(c.recipe, c.source, c.panel, c.says, c.reading) for c in paper.claims if c.exploratory}
    yield f"## {paper.title}"
    yield _counted(recipes, apart)
    for recipe, own in recipes.items():
        yield f"### {_title(own)} {{ #{recipe} }}"
        yield ", ".join(dict.fromkeys(_command(recipe, row) for _, row in own))
        has_sources = len({key.source for key, _ in own}) > 1
        cells = [HEADS, *(_cells(key, row, has_sources) for key, row in own)]
        if all(line[STATED] == NONE for line in cells[1:]):
            cells = [[*line[:STATED], *line[STATED + 1 :]] for line in cells]
        yield TextTable(_unbroken(cells), texts=len(HEADS)).as_markdown()


def _counted(recipes: Mapping[str, Rows], apart: Collection[Key]) -> str:
    """Return a table with a row for each recipe, one for all, and one for those that are counted apart.

    A claim counts once, by its first row.
    """
    once = {recipe: dict(reversed(own)) for recipe, own in recipes.items()}
    counts = {
        f"[{_title(recipes[recipe])}](#{recipe})": Counter(_status(row) for key, row in own.items() if key not in apart)
        for recipe, own in once.items()
    }
    counts["All"] = sum(counts.values(), Counter())
    if apart:
        counts["Exploratory"] = Counter(
            _status(row) for own in once.values() for key, row in own.items() if key in apart
        )
    told = [status for status in STATUSES if any(found[status] for found in counts.values())]
    lines = [[name, *(str(found[status] or "") for status in told)] for name, found in counts.items()]
    return TextTable([["Figure or table", *told], *lines], texts=1).as_markdown()


def _unbroken(cells: Cells) -> Cells:
    """Return cells in which a number and its interval stay together."""
    return [[cell.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for cell in line] for line in cells]


def _status(row: Row) -> str:
    return str(row.get("status", "not run"))


def _title(rows: Rows) -> str:
    return "; ".join(dict.fromkeys(key.source for key, _ in rows))


def _command(recipe: str, row: Row) -> str:
    if not row:
        return f"`atoll reproduce {recipe}`"
    seeds = f" --seeds {row['of']}" if row["of"] != SEEDS else ""
    return f"`atoll reproduce {recipe} --scale {row['scale']}{seeds}`"


def _cells(key: Key, row: Row, has_sources: bool) -> list[str]:
    place = ", ".join(filter(None, (key.source if has_sources else "", key.panel)))
    claim = (f"**{place}** " if place else "") + key.says + (f"<br>Reading: {key.reading}" if key.reading else "")
    if not row:
        return [claim, NONE, NONE, "not run", NONE]
    reason = f"<br>{row['reason']}" if row["reason"] else ""
    return [
        claim,
        _pairs(row["runs"], row["stated_in_words"]) or NONE,
        "<br>".join(filter(None, (_pairs(row["runs"], row["ours_in_words"]), *row["needs"]))),
        f"**{row['status']}**{reason}",
        f"{row['scale']}<br>{row['seeds']} seed{'s' * (row['seeds'] != 1)}",
    ]


def _pairs(labels: Sequence[str], values: Sequence[str]) -> str:
    return "<br>".join(f"{label} {value}" for label, value in zip(labels, values, strict=False))
