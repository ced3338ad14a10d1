"""Settings side by side, and warnings to the reader."""

from collections.abc import Iterator, Sequence

import numpy as np

from atoll.report.page.markup import Body, Cell, table
from atoll.report.reading.groups import Group, Panel
from atoll.report.reading.runs import Run
from atoll.report.tables.formats import DASH
from atoll.report.tables.run_tables import CLOCKS_NOTE, OWN_SECONDS, OWN_SECONDS_NOTE, is_on_network
from atoll.runs.fingerprint import flatten


def settings_table(groups: Sequence[Group]) -> str:
    """Return a table of all groups' settings, a line each; those that differ between groups are marked."""
    columns = [_flat(group) for group in groups]
    sections: dict[str, list[list[Cell]]] = {}
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name, DASH) for column in columns]
        differs = len(set(values)) > 1
        section, _, key = name.rpartition(".")
        line = [Cell(key, "differs" if differs else "", "differs" if differs else "same")]
        line += [Cell(value, style="other" if differs and value != values[0] else "") for value in values]
        sections.setdefault(section, []).append(line)
    header = ["Setting", *map(name_of, groups)]
    bodies = [Body(f"[{section}]" if section else "", lines) for section, lines in sections.items()]
    return table("Settings side by side", header, bodies, style="settings")


def warnings(panels: Sequence[Panel]) -> list[str]:
    """Return a sentence for everything that makes a comparison unfair or incomplete."""
    runs = [run for panel in panels for run in panel.runs]
    groups = [group for panel in panels for group in panel.groups if any(run.own_seconds for run in group.runs)]
    own = [f"{name_of(group)}: {OWN_SECONDS_NOTE.removeprefix(OWN_SECONDS).strip()}" for group in groups]
    return [*_mixed(panels), *_unfinished(runs), *own, *(text for run in runs for text in _gaps(run))]


def name_of(run: Run | Group) -> str:
    """Return the panel and label of a run or a group."""
    return " · ".join(filter(None, (run.panel, run.label)))


def _flat(group: Group) -> dict[str, str]:
    """Return a group's settings as dotted names and texts, top-level ones first; its seeds are one text."""
    flat = sorted(flatten(group.runs[0].config).items(), key=lambda item: "." in item[0])
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in flat}
    return {**texts, "label": group.label, "seed": ", ".join(map(str, group.seeds))}


def _mixed(panels: Sequence[Panel]) -> Iterator[str]:
    datasets = list(dict.fromkeys(panel.dataset for panel in panels))
    if len(datasets) > 1:
        yield (
            f"These runs use different data sets ({', '.join(datasets)}), which are shown in separate panels; targets "
            "and speed-ups compare only runs of the same panel."
        )
    if any(len(set(map(is_on_network, panel.runs))) > 1 for panel in panels):
        yield CLOCKS_NOTE


def _unfinished(runs: Sequence[Run]) -> Iterator[str]:
    open_ = [run for run in runs if not run.finished]
    if not open_:
        return
    names = ", ".join(name_of(run) for run in open_[:5]) + (f" and {len(open_) - 5} more" if len(open_) > 5 else "")
    yield f"Runs not finished: {len(open_)} of {len(runs)}; what there is so far is shown: {names}."


def _gaps(run: Run) -> Iterator[str]:
    """Report missing rows, and gaps between values."""
    event, rounds = run.rows["event"], run.rows["round"]
    if len(rounds) == 1:
        yield f"{name_of(run)} has a single row so far: a point, not a curve."
        return
    if (np.diff(event) <= 0).any() or not np.isfinite(event).all():
        yield f"{name_of(run)}: its rows are not in the order of events; two runs may have written the file."
    steps = np.diff(rounds)
    usual = float(np.median(steps)) if steps.size else 0.0
    if usual > 0 and (wide := np.flatnonzero(steps[:-1] > 3 * usual)).size:  # the last row may come at any time
        first = int(wide[0])
        yield (
            f"{name_of(run)}: rows are missing between rounds {rounds[first]:,.0f} and {rounds[first + 1]:,.0f}; "
            "the line connects their neighbours."
        )
    for name in ("train_loss", "test_loss", "test_accuracy"):
        known = np.flatnonzero(np.isfinite(run.rows[name]))
        missing = int(known[-1] - known[0] + 1 - known.size) if known.size else 0
        if missing and missing < known.size:  # else some rows lack it on purpose
            yield f"{name_of(run)}: {name} is missing in {missing} of its {len(rounds)} rows; lines skip them."
