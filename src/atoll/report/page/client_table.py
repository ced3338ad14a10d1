"""The page's figures of single clients: each metric's last value at every client, sorted, and the mean."""

from typing import Any

import numpy as np

from atoll.report.figures.before_training import evenly
from atoll.report.page.compared import name_of
from atoll.report.page.key_numbers import RunPool
from atoll.report.reading.runs import Run
from atoll.report.tables.writing import show_number
from atoll.runs.columns import column_title, is_share
from atoll.support.arrays import Floats

MAX_POINTS = 1000


def clients(run: Run, pool: RunPool) -> list[dict[str, Any]]:
    """Return a figure for each metric of single clients."""
    return [_curve(run, column, np.sort(values), pool) for column, values in run.clients.items()]


def _curve(run: Run, column: str, values: Floats, pool: RunPool) -> dict[str, Any]:
    title, mean = column_title(column), float(values.mean())
    low, middle, high = (show_number(column, float(each)) for each in (values[0], mean, values[-1]))
    return {
        "kind": "clients",
        "title": f"{title}, by client",
        "alt": f"{title} of {len(values):,} clients of {name_of(run)} at the last evaluation, sorted: {low} to {high}, "
        f"mean {middle}.",
        "note": "At the last evaluation, in ascending order; the dashed line is the mean.",
        "column": title,
        "share": is_share(column),
        "mean": mean,
        "values": pool.put(values[evenly(len(values), MAX_POINTS)]),
    }
