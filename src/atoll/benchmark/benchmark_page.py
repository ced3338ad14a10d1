"""The benchmark's tables and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from matplotlib.figure import Figure

from atoll.benchmark.contestants import ALONE
from atoll.benchmark.result_files import COSTS, MEASURED, SCORE
from atoll.benchmark.standings import Placing, average_ranks, critical_difference, friedman_p
from atoll.report.figures.ranks import plot_fronts, plot_ranks
from atoll.report.page.markup import Body, Cell, items, paragraph, table
from atoll.report.tables.formats import DASH, TextTable, show_p
from atoll.reproduce.pictures import as_address, document
from atoll.support.units import format_bytes, format_seconds

HEADER = ("Method", "Score", "95 % CI", "Worst tenth", "Spread", "New clients", "ARI", "As good as FedAvg after")
NOTE = (
    "Score: mean over clients, each on its own test samples, of accuracy or, where numbers are predicted, of R2; mean "
    "over seeds with its interval by Student's t. Worst tenth: 10th percentile over clients. Spread: deviation over "
    "clients. New clients never train. ARI: adjusted Rand index of the clusters found against the groups. A method is "
    "worse than alone if the whole interval of its difference to training alone, paired by seed, is below 0."
)
Suites = Mapping[str, Sequence[Placing]]


def suite_table(placings: Sequence[Placing]) -> TextTable:
    """Return a suite's table."""
    alone = next((each for each in placings if each.method == ALONE), None)
    most = max((len(each.scores) for each in placings), default=0)
    return TextTable([HEADER, *(_line(each, alone is not None and each.is_below(alone), most) for each in placings)], 1)


def _line(each: Placing, is_worse: bool, most: int) -> list[str]:
    means = {name: f"{found.mean:.3f}" for name, found in each.values.items()}
    score, spread, worst, new, ari = (means.get(name, DASH) for name in MEASURED)
    found, after = each.values[SCORE], DASH
    interval = DASH if found.low is None else f"{found.low:.3f} to {found.high:.3f}"
    if each.costs:
        updates, seconds, sent = (each.costs[name] for name in COSTS)
        after = f"{updates:,.0f} updates, {format_seconds(seconds)}, {format_bytes(sent)}"
    few = f" ({len(each.scores)} of {most} seeds)" if len(each.scores) < most else ""
    return [each.title + few + " (worse than alone)" * is_worse, score, interval, worst, spread, new, ari, after]


def winners(suites: Suites) -> TextTable:
    """Return what wins when: the best on each suite by three measures, and how many methods are level with it."""
    lines = [["Suite", "Score", "Level with it", "Worst tenth", "New clients", "Worse than alone"]]
    for suite, placings in suites.items():
        level = sum(not each.is_below(placings[0]) for each in placings[1:])
        firsts = [_first(placings, name) for name in ("p10_client_score", "new_client_score")]
        alone = next((each for each in placings if each.method == ALONE), None)
        worse = DASH if alone is None else f"{sum(each.is_below(alone) for each in placings)} of {len(placings) - 1}"
        lines.append([suite, placings[0].title, str(level), *firsts, worse])
    return TextTable(lines, 2)


def _first(placings: Sequence[Placing], column: str) -> str:
    known = {each.title: each.values[column].mean for each in placings if column in each.values}
    return max(known, key=lambda title: known[title], default=DASH)


def in_words(ranks: Mapping[str, float], suites: int) -> str:
    """Return what average ranks say, in sentences."""
    if not ranks:
        return "Average ranks need two methods and two suites."
    p = friedman_p(list(ranks.values()), suites)
    return (
        f"{len(ranks)} methods have results on all {suites} suites. Friedman's test "
        f"{'rejects' if p < 0.05 else 'does not reject'} that all methods are equal ({show_p(p, 'p')}); by Nemenyi's "
        f"test, at 5 %, average ranks differ significantly only if they are at least "
        f"{critical_difference(len(ranks), suites):.2f} apart."
    )


def as_markdown(suites: Suites, budget: str) -> str:
    """Return all tables in Markdown."""
    ranks = average_ranks(suites.values())
    parts = [f"# Equal {budget}\n", winners(suites).as_markdown(), f"{in_words(ranks, len(suites))}\n"]
    if ranks:
        lines = [["Method", "Average rank"], *([name, f"{rank:.1f}"] for name, rank in ranks.items())]
        parts.append(TextTable(lines, 1).as_markdown())
    parts += [f"## {suite}\n\n{suite_table(placings).as_markdown()}" for suite, placings in suites.items()]
    return "\n".join([*parts, NOTE, ""])


def as_dicts(placings: Sequence[Placing]) -> list[dict[str, Any]]:
    """Return a suite's table as plain values; scores are in the order of their seeds."""
    return [{**asdict(each), "scores": [each.scores[seed] for seed in sorted(each.scores)]} for each in placings]


def render(suites: Suites, budget: str, missing: Sequence[str]) -> str:
    """Return the page as self-contained HTML; `missing` says who is in no table, and why."""
    ranks = average_ranks(suites.values())
    body = [_table("What wins when", winners(suites)), paragraph(in_words(ranks, len(suites)))]
    if ranks:
        body.append(_figure("Average ranks", plot_ranks(ranks, critical_difference(len(ranks), len(suites)))))
    for suite, placings in suites.items():
        points = [(s.title, s.score, (s.spent["virtual_time"], s.spent["bytes"] / 1e6)) for s in placings]
        fronts = plot_fronts({suite: points}, ("Virtual seconds", "MB sent"))
        body += [f"<h2>{escape(suite)}</h2>", _table(suite, suite_table(placings)), _figure(f"{suite}: fronts", fronts)]
    body += [paragraph(NOTE), f"<h2>In no table: {len(missing)}</h2><ul>{items(missing)}</ul>" * bool(missing)]
    heading = f"<header><h1>The benchmark, equal {escape(budget)}</h1></header>"
    return document("Benchmark", f"{heading}<main>{''.join(body)}</main>")


def _table(caption: str, shown: TextTable) -> str:
    header, *lines = shown.cells
    return table(caption, header, [Body("", [[Cell(text) for text in line] for line in lines])])


def _figure(alt: str, figure: Figure) -> str:
    return f'<figure><img loading="lazy" alt="{escape(alt)}" src="{as_address(figure)}"></figure>'
