"""The content of a page at one moment: texts and tables as HTML, and the numbers of its figures."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll.report.page.compared import settings_table, warnings
from atoll.report.page.details import details
from atoll.report.page.key_numbers import RunPool, curves
from atoll.report.page.markup import items, paragraph
from atoll.report.page.privacy_section import privacy_tables
from atoll.report.page.results import differences_to, results_table
from atoll.report.page.scenes import Scenes
from atoll.report.page.targets import targets_table
from atoll.report.reading.groups import Group, Panel, find_baseline, group_runs, make_panels
from atoll.report.reading.recovery import changes_of
from atoll.report.reading.runs import Run
from atoll.support.untrusted import read_json
from atoll.support.wording import printable

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
    texts = [_count(len(runs), "run")]
    if len(groups) < len(runs):
        texts.append(_count(len(groups), "setting"))
    open_ = sum(not run.finished for run in runs)
    texts.append(f"{open_} not finished" if open_ else "all finished" if len(runs) > 1 else "finished")
    return f"{', '.join(texts)}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


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
