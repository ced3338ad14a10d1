"""Settings side by side, and what a reader must be warned of."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from atoll.report.page.groups import Group, Panel
from atoll.report.page.markup import Body, Cell, table
from atoll.report.reading.runs import Run

UNSET = "–"


def settings_table(groups: Sequence[Group]) -> str:
    """Return every setting of every group, one line a setting; those that differ between groups are marked."""
    columns = [_flat(group) for group in groups]
    sections: dict[str, list[list[Cell]]] = {}
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name, UNSET) for column in columns]
        differs = len(set(values)) > 1
        section, _, key = name.rpartition(".")
        line = [Cell(key, "differs" if differs else "", "differs" if differs else "same")]
        line += [Cell(value, style="other" if differs and value != values[0] else "") for value in values]
        sections.setdefault(section, []).append(line)
    header = ["Setting", *(_title(group) for group in groups)]
    bodies = [Body(f"[{section}]" if section else "", lines) for section, lines in sections.items()]
    return table("Settings side by side", header, bodies, style="settings")


def warnings(panels: Sequence[Panel]) -> list[str]:
    """Return one sentence for all that makes a comparison less than fair or complete."""
    runs = [run for panel in panels for run in panel.runs]
    return [*_mixed(panels), *_unfinished(runs), *(text for run in runs for text in _gaps(run))]


def name_of(run: Run) -> str:
    """Return what a run is called where there is no panel around it."""
    return " · ".join(filter(None, (run.panel, run.label)))


def _title(group: Group) -> str:
    return " · ".join(filter(None, (group.panel, group.label)))


def _flat(group: Group) -> dict[str, str]:
    """Return a group's settings as dotted names and texts; its seeds are one text."""
    seeds = ", ".join(map(str, group.seeds))
    return {**dict(_walk("", group.runs[0].config)), "label": group.label, "seed": seeds}


def _walk(prefix: str, table_: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in sorted(table_.items(), key=lambda item: isinstance(item[1], dict)):
        if isinstance(value, dict):
            yield from _walk(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)


def _mixed(panels: Sequence[Panel]) -> Iterator[str]:
    datasets = list(dict.fromkeys(panel.dataset for panel in panels))
    if len(datasets) > 1:
        yield (
            f"These runs learn different data sets ({', '.join(datasets)}): they are shown in panels of their own, and "
            "targets and speed-ups compare only runs of one panel."
        )


def _unfinished(runs: Sequence[Run]) -> Iterator[str]:
    open_ = [run for run in runs if not run.finished]
    if not open_:
        return
    names = ", ".join(name_of(run) for run in open_[:5]) + (f" and {len(open_) - 5} more" if len(open_) > 5 else "")
    yield f"{len(open_)} of {len(runs)} runs are not finished, and are shown as far as they are: {names}."


def _gaps(run: Run) -> Iterator[str]:
    """Report missing rows, and values that are missing between others."""
    event, rounds = run.rows["event"], run.rows["round"]
    if len(rounds) == 1:
        yield f"{name_of(run)} has a single row so far: a point, not a curve."
        return
    if (np.diff(event) <= 0).any() or not np.isfinite(event).all():
        yield f"{name_of(run)}: its rows are not in the order of events; the file may have been written by two runs."
    steps = np.diff(rounds)
    usual = float(np.median(steps)) if steps.size else 0.0
    if usual > 0 and (wide := np.flatnonzero(steps[:-1] > 3 * usual)).size:  # the last probe may come at any time
        first = int(wide[0])
        yield (
            f"{name_of(run)}: rows are missing between rounds {rounds[first]:,.0f} and {rounds[first + 1]:,.0f}; "
            "the line goes straight across."
        )
    for name in ("train_loss", "test_loss", "test_accuracy"):
        known = np.flatnonzero(np.isfinite(run.rows[name]))
        missing = int(known[-1] - known[0] + 1 - known.size) if known.size else 0
        if missing and missing < known.size:  # else it is measured at some probes only, on purpose
            yield f"{name_of(run)}: {name} is missing at {missing} of its {len(rounds)} probes; lines pass over them."
        if diverged := int(np.isinf(run.rows[name]).sum()):
            yield f"{name_of(run)}: {name} is infinite at {diverged} probes."
