"""The data of the curves, over runs and over clients: quantities, axes, and every run's columns as compact bytes."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.report.figures.before_training import evenly
from atoll.report.page.compared import name_of
from atoll.report.reading.groups import Panel
from atoll.report.reading.records import changes_of
from atoll.report.reading.runs import Run
from atoll.report.tables.run_tables import lead_of
from atoll.report.tables.writing import show_number
from atoll.runs.columns import column_title, is_share
from atoll.support.estimates import t_point

AXES = (
    ("round", "Rounds", "count"),
    ("client_updates", "Client updates", "count"),
    ("bytes", "Bytes sent", "bytes"),
    ("virtual_time", "Virtual time", "seconds"),
    ("wall_time", "Wall time", "seconds"),
)
"""Horizontal axes of the curves: column, title, and kind of unit."""

_QUANTITIES = (
    *("test_accuracy", "mean_cluster_accuracy", "worst_cluster_accuracy", "train_loss", "test_loss", "local_loss"),
    *("ari", "parameter_error"),
)
_TITLES = {"train_loss": "Training loss", "ari": "Adjusted Rand index"}
_NO_QUANTITIES = {"event", "bytes_up", "bytes_down", *(column for column, _, _ in AXES)}
_MAX_CLIENTS = 1000  # drawn in a curve of single clients


def quantities(runs: Sequence[Run]) -> dict[str, str]:
    """Return the titles of the columns that at least one run has recorded, the usual ones first, others by name."""
    known = {
        name
        for run in runs
        for name, values in run.rows.items()
        if name not in _NO_QUANTITIES and np.isfinite(values).any()
    }
    names = [name for name in _QUANTITIES if name in known] + sorted(known - {*_QUANTITIES})
    return {name: _TITLES.get(name) or column_title(name) for name in names}


class RunPool:
    """Arrays as base64 of little-endian float32, each distinct one stored once.

    Seven digits are more than a curve can show. Runs of one experiment share many columns, such as rounds.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, int] = {}

    def put(self, values: Sequence[float] | NDArray[Any]) -> int:
        """Store an array, and return its index in `packed`."""
        with np.errstate(over="ignore"):  # beyond 3e38 a loss is as good as infinite
            packed = b64encode(np.asarray(values, dtype="<f4").tobytes()).decode()
        return self.arrays.setdefault(packed, len(self.arrays))

    @property
    def packed(self) -> list[str]:
        """The arrays, in the order of their indices."""
        return list(self.arrays)


def curves(panels: Sequence[Panel], pool: RunPool) -> dict[str, Any]:
    """Return panels, groups and runs for the page's script; columns are indices into the pool.

    `style` is the index of a group's label among the distinct ones, so that a label looks the same in every panel.
    """
    shown = quantities([run for panel in panels for run in panel.runs])
    labels = list(dict.fromkeys(group.label for panel in panels for group in panel.groups))
    leads = {lead_of(panel.runs) for panel in panels}
    most = max((len(group.runs) for panel in panels for group in panel.groups), default=0)
    return {
        "lead": next((each for each in ("client_updates", "virtual_time") if each in leads), "round"),
        "axes": [{"column": column, "title": title, "kind": kind} for column, title, kind in AXES],
        "quantities": [{"column": name, "title": title, "share": is_share(name)} for name, title in shown.items()],
        "labels": labels,
        "t": {n: t_point(n) for n in range(2, most + 1)},
        "panels": [
            {
                "title": panel.title,
                "changes": changes_of(panel.runs[0].config),
                "groups": [
                    {
                        "style": labels.index(group.label),
                        "runs": [_columns(run, shown, pool) for run in group.runs],
                        "done": [run.finished for run in group.runs],
                    }
                    for group in panel.groups
                ],
            }
            for panel in panels
        ],
    }


def _columns(run: Run, shown: Iterable[str], pool: RunPool) -> dict[str, int]:
    rows = {**run.rows, "bytes": run.bytes_sent}
    names = [*(column for column, _, _ in AXES), *shown]
    return {name: pool.put(rows[name]) for name in names if name in rows and np.isfinite(rows[name]).any()}


def client_curves(run: Run, pool: RunPool) -> Iterator[dict[str, Any]]:
    """Yield a figure for each metric of single clients: its last values, sorted, and their mean."""
    for column, values in run.clients.items():
        title, ordered = column_title(column), np.sort(values)
        mean = float(ordered.mean())
        low, middle, high = (show_number(column, float(each)) for each in (ordered[0], mean, ordered[-1]))
        yield {
            "kind": "clients",
            "title": f"{title}, by client",
            "alt": f"{title} of {len(values):,} clients of {name_of(run)} at the last evaluation, sorted: {low} to "
            f"{high}, mean {middle}.",
            "note": "At the last evaluation, in ascending order; the dashed line is the mean.",
            "column": title,
            "share": is_share(column),
            "mean": mean,
            "values": pool.put(ordered[evenly(len(values), _MAX_CLIENTS)]),
        }
