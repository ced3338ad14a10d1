"""The benchmark's tables and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib import resources
from typing import Any

from atoll.benchmark.result_files import COSTS, MEASURED
from atoll.benchmark.standings import Standing, average_ranks, critical_difference, friedman_p
from atoll.report.figures.ranks import plot_fronts, plot_ranks
from atoll.report.page.markup import Body, Cell, items, paragraph, table
from atoll.report.reading.units import format_seconds
from atoll.report.tables.formats import DASH, markdown_table, show_p
from atoll.reproduce.pictures import as_address
from atoll.support.estimates import Estimate

HEADER = ("Method", "Score", "95 % CI", "Worst tenth", "Spread", "New clients", "ARI", "As good as FedAvg after")
NOTE = (
    "Score: mean over clients, each on its own test samples, of accuracy or, where numbers are predicted, of R2; mean "
    "over seeds with its interval by Student's t. Worst tenth: 10th percentile over clients. Spread: deviation "
    "over clients. New clients never train. ARI: adjusted Rand index of the clusters found against the groups."
)
Suites = Mapping[str, Sequence[Standing]]


def cells_of(standings: Sequence[Standing]) -> list[list[str]]:
    """Return a suite's table as text, header first."""
    return [list(HEADER), *map(_line, standings)]


def _line(each: Standing) -> list[str]:
    score, *others = (each.values.get(name) for name in MEASURED)
    spread, worst, new, ari = map(_mean, others)
    interval = DASH if score is None or score.low is None else f"{score.low:.3f} to {score.high:.3f}"
    title = each.title + (" (worse than alone)" if each.is_worse_than_alone else "")
    updates, seconds, sent = (each.costs.get(name) for name in COSTS)
    after = DASH
    if updates is not None and seconds is not None and sent is not None:
        after = f"{updates:,.0f} updates, {format_seconds(seconds)}, {sent / 1e6:,.2f} MB"
    return [title, _mean(score), interval, worst, spread, new, ari, after]


def _mean(found: Estimate | None) -> str:
    return DASH if found is None else f"{found.mean:.3f}"


def as_dicts(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return a suite's table as plain values."""
    return [
        {"method": each.method, **{name: asdict(found) for name, found in each.values.items()}, "costs": each.costs}
        for each in standings
    ]


def winners(suites: Suites) -> list[list[str]]:
    """Return what wins when: on each suite the best by score, worst tenth and new clients, and how many are level."""
    lines = [["Suite", "Score", "Level with it", "Worst tenth", "New clients", "Worse than alone"]]
    for suite, standings in suites.items():
        best = standings[0]
        level = sum(_is_level(each, best) for each in standings[1:])
        firsts = [max(known, key=lambda each: each.values[name].mean).title if known else DASH
                  for name in ("p10_client_score", "new_client_score")
                  for known in [[each for each in standings if name in each.values]]]  # fmt: skip
        worse = sum(each.is_worse_than_alone for each in standings)
        lines.append([suite, best.title, str(level), *firsts, f"{worse} of {len(standings)}"])
    return lines


def _is_level(one: Standing, best: Standing) -> bool:
    """Return whether the interval of the paired difference to the best holds 0."""
    from atoll.support.estimates import estimate

    pairs = [one.scores[seed] - best.scores[seed] for seed in one.scores if seed in best.scores]
    found = estimate(pairs) if pairs else None
    return found is not None and (found.high is None or found.high >= 0)


def in_words(suites: Suites) -> list[str]:
    """Return what the ranks say, in sentences."""
    ranks = average_ranks(list(suites.values()))
    if len(ranks) < 2 or len(suites) < 2:
        return ["Average ranks need two methods and two suites."]
    p, apart = friedman_p(list(ranks.values()), len(suites)), critical_difference(len(ranks), len(suites))
    return [
        f"{len(ranks)} methods have results on all {len(suites)} suites. That all are alike has {show_p(p, 'p')} by "
        f"Friedman's test; ranks that differ by {apart:.2f} are apart by Nemenyi's."
    ]


def as_markdown(suites: Suites, budget: str) -> str:
    """Return all tables in Markdown."""
    ranks = [["Method", "Average rank"], *([name, f"{rank:.1f}"] for name, rank in _ranks(suites).items())]
    parts = [f"# Benchmark: equal {budget}\n", markdown_table(winners(suites), 1)]
    parts += [*in_words(suites), "", markdown_table(ranks, 1)]
    for suite, standings in suites.items():
        parts += [f"## {suite}\n", markdown_table(cells_of(standings), 1)]
    return "\n".join([*parts, NOTE, ""])


def _ranks(suites: Suites) -> dict[str, float]:
    return average_ranks(list(suites.values()))


def render(suites: Suites, budget: str, left_out: Sequence[str]) -> str:
    """Return the page as self-contained HTML."""
    ranks = _ranks(suites)
    body = [f"<header><h1>Clustered and hierarchical learning, compared: equal {escape(budget)}</h1></header><main>"]
    body += [_table("What wins when", winners(suites)), paragraph(" ".join(in_words(suites)))]
    if len(ranks) > 1 and len(suites) > 1:
        picture = as_address(plot_ranks(ranks, critical_difference(len(ranks), len(suites))))
        body.append(f'<figure><img alt="Average ranks" src="{picture}"></figure>')
    for suite, standings in suites.items():
        body.append(f"<section><h2>{escape(suite)}</h2>{_table(suite, cells_of(standings))}")
        points = [
            (s.title, s.values[MEASURED[0]].mean, (s.spent["virtual_time"], s.spent["bytes"] / 1e6)) for s in standings
        ]
        picture = as_address(plot_fronts({suite: points}, ("Virtual seconds", "MB sent")))
        body.append(f'<figure><img loading="lazy" alt="Fronts on {escape(suite)}" src="{picture}"></figure></section>')
    body += [paragraph(NOTE), f"<h2>Left out: {len(left_out)}</h2><ul>{items(left_out)}</ul></main>"]
    style = (resources.files("atoll.reproduce") / "page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>Benchmark</title><style>{style}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _table(caption: str, cells: Sequence[Sequence[str]]) -> str:
    header, *lines = cells
    return table(caption, header, [Body("", [[Cell(text) for text in line] for line in lines])])
