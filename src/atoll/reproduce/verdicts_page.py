"""The page of reproduced figures: each claim with the paper's numbers beside ours, and whether it holds."""

import platform
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from atoll.report.page.markup import Body, Cell, paragraph, table
from atoll.reproduce.claim_results import ClaimResult
from atoll.reproduce.claims import Claim, Paper
from atoll.reproduce.costs import RunCost
from atoll.reproduce.judging import Verdict
from atoll.reproduce.pictures import document, draw
from atoll.reproduce.verdict_wording import (
    NONE,
    count,
    difference_in_words,
    estimate_in_words,
    labels_of,
    need_in_words,
    tolerance_in_words,
    value_in_words,
)
from atoll.support.environment import package_versions
from atoll.support.units import format_seconds
from atoll.support.wording import counted

BEYOND = "Beyond the papers"
TEST = (
    "Numbers are means over seeds with 95 % intervals by Student's t; all runs with one seed have the same data and "
    "network. A claim holds if every interval, such as that of one run's lead over another, lies in the range claimed; "
    "it fails if one lies wholly outside; otherwise, and always with fewer than three seeds, it is undecided. "
    "> stands for a target that was not met before the run's end. Exploratory claims, those on a second reading of the "
    "paper or on a measure chosen after looking, are counted apart."
)


def render(papers: Sequence[Paper], results: Sequence[ClaimResult], scale: str) -> str:
    """Return the page as self-contained HTML, with the recipes' results in their order."""
    groups = _group(papers, results)
    verdicts = [verdict for result in results for verdict in result.verdicts]
    claims = counted(sum(not verdict.claim.exploratory for verdict in verdicts), "claim")
    body = [
        "<header><h1>The papers' figures, reproduced</h1>",
        f"<p>Scale <b>{escape(scale)}</b>. {claims}: {count(verdicts)}. {escape(_scale_note(scale))}</p>",
        f"<p>{escape(TEST)}</p>",
        f"<nav aria-label='Contents'>{''.join(_contents(title, each) for title, _, each in groups)}</nav></header>",
        "<main>",
    ]
    for title, reference, each in groups:
        body.append(f"<section><h2>{escape(title)}</h2>" + (f"<p>{escape(reference)}</p>" if reference else ""))
        body += [_section(result) for result in each]
        body.append("</section>")
    body.append(_costs([result.cost for result in results if result.cost is not None], scale))
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    made = f"Made by Atoll with {versions}, Python {platform.python_version()}, on {platform.machine()}."
    return document("Reproduced figures", f"{''.join(body)}</main><footer>{escape(made)}</footer>")


def _scale_note(scale: str) -> str:
    if scale == "paper":
        return "This is the papers' own size, where they state it."
    if scale == "largest":
        return "Each claim is judged once, at the largest scale with three seeds; paper is the papers' own size."
    return (
        "This is far smaller than the papers' own size, to take minutes instead of days: fewer rounds and clients, "
        "smaller models and batches. Claims about which run is ahead are judged; claims about numbers that only full "
        "training can reach are not."
    )


def _group(papers: Sequence[Paper], results: Sequence[ClaimResult]) -> list[tuple[str, str, list[ClaimResult]]]:
    """Return (title, reference, results) of each paper, and of the results that belong to none."""
    groups = [(p.title, p.reference, [r for r in results if r.recipe in p.recipes]) for p in papers]
    known = {recipe for paper in papers for recipe in paper.recipes}
    groups.append((BEYOND, "", [result for result in results if result.recipe not in known]))
    return [group for group in groups if group[2]]


def _contents(title: str, results: Sequence[ClaimResult]) -> str:
    links = "".join(
        f'<li><a href="#{escape(r.recipe)}">{escape(r.recipe)}</a> <small>{escape(count(r.verdicts))}</small></li>'
        for r in results
    )
    summary = f"{title}: {count(verdict for result in results for verdict in result.verdicts)}"
    return f"<details><summary>{escape(summary)}</summary><ul>{links}</ul></details>"


def _tell(problems: Sequence[str]) -> str:
    """Return problems as paragraphs, folded after the third."""
    told = [f'<p class="problem">{escape(problem)}</p>' for problem in problems]
    more = f"<details><summary>{len(told) - 3} more</summary>{''.join(told[3:])}</details>" if told[3:] else ""
    return "".join(told[:3]) + more


def _section(result: ClaimResult) -> str:
    head = f'<article id="{escape(result.recipe)}"><h3>{escape(result.recipe)}</h3><p>{escape(result.description)}</p>'
    parts = [head, _tell(list(dict.fromkeys(result.problems)))]
    if result.finished < result.expected:
        parts.append(f'<p class="problem">Runs finished: {result.finished} of {result.expected}.</p>')
    if result.verdicts:
        parts.append(_table(result.verdicts))
    parts += [
        f'<figure><img loading="lazy" alt="{escape(f"{result.recipe}: {caption}")}" src="{address}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for caption, address in draw(result)
    ]
    return "".join(parts) + "</article>"


def _table(verdicts: Sequence[Verdict]) -> str:
    """Return the claims as a table; a claim about several panels is written once."""
    groups = [list(group) for _, group in groupby(verdicts, lambda v: (v.claim.says, v.claim.source, v.claim.quote))]
    has_panels = any(verdict.claim.panel for verdict in verdicts)
    heads = ("Claim", *(("Panel",) if has_panels else ()), "Run", "The paper", "Ours", "Difference", "Verdict")
    columns = "".join(f'<th scope="col">{head}</th>' for head in heads)
    bodies = "".join(f"<tbody>{''.join(_rows(group, has_panels))}</tbody>" for group in groups)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Claims">'
        f"<table><thead><tr>{columns}</tr></thead>{bodies}</table></div>"
    )


def _rows(verdicts: Sequence[Verdict], has_panels: bool) -> Iterator[str]:
    """Yield the table rows of one claim: one for each run of each panel."""
    height = sum(len(labels_of(verdict.claim)) for verdict in verdicts)
    lead = f'<th scope="rowgroup" rowspan="{height}">{_claim(verdicts[0].claim)}</th>'
    for verdict in verdicts:
        labels = labels_of(verdict.claim)
        span = f'rowspan="{len(labels)}"'
        panel = f"<td {span}>{escape(verdict.claim.panel)}</td>" if has_panels else ""
        end = f'<td class="verdict" {span}>{_verdict(verdict)}</td>'
        for number in range(len(labels)):
            yield f"<tr>{lead}{panel}{_cells(verdict, number)}{end}</tr>"
            lead = panel = end = ""


def _cells(verdict: Verdict, number: int) -> str:
    """Return a run's label, the paper's number, ours, and the difference."""
    claim = verdict.claim
    stated = claim.stated[number] if claim.stated else None
    ours = verdict.ours[number] if verdict.ours else None
    values = (
        value_in_words(claim, stated),
        estimate_in_words(claim, ours),
        NONE if stated is None or ours is None else difference_in_words(claim, ours.mean, stated),
    )
    numbers = "".join(f'<td class="number">{escape(value)}</td>' for value in values)
    return f"<td>{escape(labels_of(claim)[number])}</td>{numbers}"


def _claim(claim: Claim) -> str:
    quote = f"<q>{escape(claim.quote)}</q>" if claim.quote else ""
    return (
        f"{escape(claim.says)}<small>{escape(claim.source)}</small>{quote}"
        f"<small>Holds if {escape(tolerance_in_words(claim))}.</small>"
        + (f"<small>Reading: {escape(claim.reading)}</small>" if claim.reading else "")
    )


def _verdict(verdict: Verdict) -> str:
    style = verdict.status.replace(" ", "-")
    needs = [need_in_words(verdict.claim, need) for need in verdict.needs]
    at = f"{verdict.scale} scale" if verdict.status != "not run" else ""
    of = ", ".join(filter(None, (at, "exploratory" if verdict.claim.exploratory else "")))
    small = "".join(f"<small>{escape(text)}</small>" for text in (*needs, verdict.reason, of) if text)
    return f'<b class="{style}">{verdict.status}</b>{small}'


def _costs(costs: Sequence[RunCost], scale: str) -> str:
    """Return the table of measured times, and of estimates for the paper scale."""
    if not costs:
        return ""
    is_estimated = scale not in ("paper", "largest")
    heads = ("Recipe", "Runs", "Time here", "Seconds per round", *(("Paper scale, at most",) if is_estimated else ()))
    lines = [[Cell(text) for text in _cost(cost)[: len(heads)]] for cost in costs]
    total = sum(cost.seconds for cost in costs)
    expected = [cost.paper_seconds for cost in costs if cost.paper_seconds is not None]
    text = f"The runs took {format_seconds(total)} in all, each on one core, probes included."
    if is_estimated and expected:
        rest = ", without the recipes whose time is unknown" if len(expected) < len(costs) else ""
        text += (
            f" The paper scale would take at most {format_seconds(sum(expected))} on one core{rest}: each run's time, "
            "scaled by rounds (or virtual seconds), by clients, and by the seconds of a client's local training, timed "
            "now for both. It is much too long if evaluations took most of the time, or the machine was busy."
        )
    return f"<section><h2>Time</h2>{paragraph(text)}{table('Time', heads, [Body('', lines)])}</section>"


def _cost(cost: RunCost) -> list[str]:
    each = [cost.recipe, str(cost.runs), format_seconds(cost.seconds), f"{cost.seconds / max(cost.rounds, 1):.3g}"]
    return [*each, NONE if cost.paper_seconds is None else format_seconds(cost.paper_seconds)]
