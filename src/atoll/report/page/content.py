"""The content of a page at one moment: texts and tables as HTML, and the numbers of its figures."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from atoll.report.page.compared import name_of, settings_table, warnings
from atoll.report.page.details import details
from atoll.report.page.key_numbers import RunPool, curves
from atoll.report.page.markup import Body, Cell, items, paragraph, table
from atoll.report.page.results import differences_to, results_table
from atoll.report.page.scenes import Scenes
from atoll.report.page.targets import targets_table
from atoll.report.reading.groups import Group, Panel, find_baseline, group_runs, make_panels
from atoll.report.reading.records import changes_of
from atoll.report.reading.runs import Run
from atoll.report.tables.formats import DASH
from atoll.support.untrusted import read_json
from atoll.support.wording import counted, printable

MOST_BASELINES = 40  # settings in a panel beyond which only the first baseline is compared
WAITING = "Waiting for the first row of metrics. It will appear here as soon as it is written."
_MOST_LETTERS = 2000
_MOST = 5  # texts of a kind
_PACKAGES = {"atoll": "Atoll", "torch": "PyTorch", "numpy": "NumPy"}


@dataclass(frozen=True)
class Content:
    """The content of a page.

    Attributes:
        title: the experiments' names.
        summary: how many runs there are, and how many have finished.
        sections: HTML by the id of the element that holds it.
        data: what the page's script draws.
    """

    title: str
    summary: str
    sections: dict[str, str]
    data: dict[str, Any]

    def as_json(self) -> bytes:
        """Return it as one JSON document, which a watched page requests."""
        return json.dumps(vars(self), allow_nan=False, separators=(",", ":")).encode()


def make_content(
    runs: Sequence[Run],
    targets: Sequence[float] | None = None,
    *,
    stable: bool = False,
    scenes: Scenes | None = None,
    notices: Sequence[str] = (),
    live: bool = False,
    baseline: str | None = None,
) -> Content:
    """Return the content of a page of these runs.

    `targets` are test accuracies, 0 to 1; None chooses some that distinguish the runs. If `stable`, a target counts as
    reached only once all later values meet it too. `scenes` holds those made for an earlier page. `notices` come before
    the page's own warnings. `baseline` is the label of the setting that others are compared with, at first; by default
    each panel's first. Without runs, the page says that it is waiting.
    """
    groups = group_runs(runs)
    panels = make_panels(groups)
    against = "" if baseline is None else find_baseline(groups, baseline).label
    pool = RunPool()
    shown = {"curves": curves(panels, pool), "details": list(details(groups, pool, scenes or Scenes()))}
    summary = _summary(runs, groups)
    return Content(
        title=", ".join(dict.fromkeys(run.name for run in runs)) or "Waiting for runs",
        summary=summary,
        sections={
            "about": _about(runs),
            "notices-body": items([*notices, *warnings(panels)]),
            "results-body": results_table(panels, against) + privacy_tables(groups) if runs else paragraph(WAITING),
            "targets-body": targets_table(panels, targets, stable, against) if runs else "",
            "settings-body": settings_table(groups) if runs else "",
        },
        data={**shown, "compared": _compared(panels, against), "columns": pool.packed, "live": live, "state": summary},
    )


def _compared(panels: Sequence[Panel], baseline: str) -> dict[str, Any]:
    """Return the differences of all groups to each one as a baseline, by panel, so that the reader can choose it."""
    labels = [[group.label for group in panel.groups] for panel in panels]
    return {
        "baseline": baseline or next((each[0] for each in labels), ""),
        "labels": labels,
        "differences": [
            [
                differences_to(panel, each) if len(panel.groups) <= MOST_BASELINES or each is first else []
                for each in panel.groups
            ]
            for panel, first in ((panel, panel.baseline(baseline)) for panel in panels)
        ],
    }


def _summary(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    if not runs:
        return "No run has any rows yet."
    texts = [counted(len(runs), "run")]
    if len(groups) < len(runs):
        texts.append(counted(len(groups), "setting"))
    open_ = sum(not run.finished for run in runs)
    texts.append(f"{open_} not finished" if open_ else "all finished" if len(runs) > 1 else "finished")
    return f"{', '.join(texts)}."


def _about(runs: Sequence[Run]) -> str:
    """Return the experiments' descriptions, and a sentence for each set of versions and machine that runs had."""
    described = dict.fromkeys(printable(run.config.get("description"), _MOST_LETTERS) for run in runs)
    places = dict.fromkeys(_place(run) for run in runs)
    changes = dict.fromkeys(f"{changes_of(run.config)}"[1:-1] for run in runs)
    texts = [paragraph(text) for text in [*described][:_MOST] if text]
    texts += [paragraph(f"Clients' data change at the start of round {text}.") for text in [*changes][:_MOST] if text]
    return "".join(texts + [paragraph(f"Run with {text}.", "note") for text in [*places][:_MOST] if text])


def _place(run: Run) -> str:
    """Return versions, system and device of a run; nothing if its folder does not tell."""
    try:
        found = read_json(run.folder / "environment.json", run.folder)
        packages, machine = found["packages"], found["machine"]
        versions = [f"{name} {packages[key]}" for key, name in _PACKAGES.items() if packages.get(key)]
        where = f"{machine['system']}, {machine['cpus']} CPUs"
        device = run.config.get("run", {}).get("device", "cpu")
        return f"{', '.join([*versions, 'Python ' + found['python']])}, on {where}, device {device}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


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
