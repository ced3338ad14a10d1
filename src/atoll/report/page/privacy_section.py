"""The page's tables of epsilon: planned for each cluster, and spent."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from atoll.report.page.compared import name_of
from atoll.report.page.markup import Body, Cell, table
from atoll.report.reading.groups import Group
from atoll.report.reading.runs import Run
from atoll.report.tables.formats import DASH
from atoll.support.untrusted import read_json

MOST_CLUSTERS = 20
_HEADER = ("Cluster", "Clients", "Releases", "Epsilon")
_SEEDED = "The noise is drawn from the seed, for reproducibility: anyone who knows the seed can remove it."


def privacy_tables(groups: Sequence[Group]) -> str:
    """Return a table for the first finished run of each group that is private; nothing for others."""
    tables = []
    for run in (group.counted[0] for group in groups):
        # A summary is missing or damaged, or of a run that is not private.
        with suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
            tables.append(_table(run, read_json(run.folder / "summary.json", run.folder)["privacy"]))
    return "".join(tables)


def _table(run: Run, told: Mapping[str, Any]) -> str:
    clusters = told["clusters"]
    lines = [_line(str(int(own["cluster"])), own) for own in clusters[:MOST_CLUSTERS]]
    worst = {"releases": told["worst_client_releases"], "epsilon": told["epsilon"]}
    lines.append(_line("Worst client, spent", worst))
    budget = "" if told["budget"] is None else f", budget {float(told['budget']):g}"
    notes = [
        "For each cluster, its worst client as planned.",
        f"Epsilon at delta = {float(told['delta']):g} ({told['adjacency']}), trust = {told['trust']}{budget}.",
        f"Only the first {MOST_CLUSTERS} of {len(clusters):,} clusters are shown." * (len(clusters) > MOST_CLUSTERS),
        "" if told["is_private"] else _SEEDED,
    ]
    caption = f"Privacy: {name_of(run)}" if name_of(run) else "Privacy"
    return table(caption, _HEADER, [Body("", lines)], " ".join(filter(None, notes)))


def _line(name: str, told: Mapping[str, Any]) -> list[Cell]:
    clients = f"{int(told['clients']):,}" if "clients" in told else ""
    epsilon = DASH if told["epsilon"] is None else f"{float(told['epsilon']):.3f}"
    return [Cell(name), Cell(clients), Cell(f"{int(told['releases']):,}"), Cell(epsilon)]
