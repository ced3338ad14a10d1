"""What a sweep comes to: each setting's metric over seeds, with the best setting marked."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np

from atoll import report
from atoll.experiment.experiment import Experiment
from atoll.experiment.settings import Settings
from atoll.experiment.wording import unknown
from atoll.report.records import COLUMNS
from atoll.report.runs import NotBegun
from atoll.report.tables import DASH, markdown_table
from atoll.runs.folder import RunFolder
from atoll.runs.probes import check_probes
from atoll.support.errors import InputError, SettingWarning
from atoll.support.estimates import Estimate, estimate
from atoll.sweep.axes import short_names
from atoll.sweep.planning import Member

METRICS = (
    *(name for name in COLUMNS if name not in ("event", "round")),
    "local_loss",
    "ari",
    "mean_cluster_accuracy",
    "worst_cluster_accuracy",
    "parameter_error",
    "h_device",
    "h_cluster",
)
"""Columns of numbers that a run may record, besides those that it counts with."""

NOTE = (
    "Last: at the last probe. Best: at each run's best probe. Mean ± sample standard deviation over seeds; "
    "95 % CI: of the mean of the last value, by Student's t. Only finished runs count."
)


@dataclass(frozen=True)
class Line:
    """One setting of a sweep.

    Attributes:
        run: the experiment's run; empty where it has but one.
        values: of the settings that are swept over, without the seed.
        seeds: how many runs of it there are to be.
        last: over seeds, of the metric at the last probe; None without a finished run.
        best: over seeds, of the metric at each run's best probe.
        is_best_last: whether no other setting's mean of the last value is better.
        is_best: whether no other setting's mean of the best value is better.
    """

    run: str
    values: Mapping[str, Any]
    seeds: int
    last: Estimate | None
    best: Estimate | None
    is_best_last: bool = False
    is_best: bool = False


def require_metric(metric: str, runs: Iterable[Settings] = ()) -> None:
    """Refuse a metric that runs do not record, not even by their probes.

    Raises:
        InputError: names the nearest one, and all that are allowed; or a probe cannot measure its run.
    """
    if metric in METRICS:
        return
    own = {column for settings in runs if settings.run.probes for column in check_probes(Experiment(settings))}
    if metric not in own:
        raise InputError(f"--metric {metric}: {unknown(metric, (*METRICS, *own))}")


def rises(metric: str) -> bool:
    """Return whether more of a metric is better.

    >>> rises("worst_cluster_accuracy"), rises("test_loss")
    (True, False)
    """
    return metric.endswith(("accuracy", "ari"))


def read_values(folder: Path, metric: str) -> tuple[float, float] | None:
    """Return a run's metric at the last and at its best probe; None if it is not finished or has not recorded it."""
    try:
        run = report.read_run(folder)
    except InputError as error:
        if RunFolder(folder).is_run and not isinstance(error, NotBegun):
            warn(f"left out: {error}", SettingWarning, 2)
        return None
    values = run.rows.get(metric, np.empty(0))
    if not run.finished or not np.isfinite(values).any() or not np.isfinite(values[-1]):
        return None
    return float(values[-1]), float(np.nanmax(values) if rises(metric) else np.nanmin(values))


def sum_up(out: Path, members: Sequence[Member], metric: str) -> list[Line]:
    """Return one line a setting, in the order of the sweep, from what its finished runs recorded."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.setting, []).append(member)
    lines = list[Line]()
    for group in groups.values():
        found = [pair for member in group if (pair := read_values(out / member.name, metric)) is not None]
        last, best = (estimate([pair[i] for pair in found]) if found else None for i in (0, 1))
        values = {name: value for name, value in group[0].values.items() if name != "seed"}
        lines.append(Line(group[0].run, values, len(group), last, best))
    return _mark(lines, metric)


def _mark(lines: Sequence[Line], metric: str) -> list[Line]:
    def best_of(means: Iterable[float | None]) -> float | None:
        known = [mean for mean in means if mean is not None]
        return (max if rises(metric) else min)(known, default=None)

    last = best_of(line.last.mean if line.last else None for line in lines)
    best = best_of(line.best.mean if line.best else None for line in lines)
    return [
        Line(
            line.run,
            line.values,
            line.seeds,
            line.last,
            line.best,
            line.last is not None and line.last.mean == last,
            line.best is not None and line.best.mean == best,
        )
        for line in lines
    ]


def cells_of(lines: Sequence[Line], metric: str) -> tuple[list[list[str]], int]:
    """Return the table as text, its header first, and how many of its columns are texts."""
    names = list(lines[0].values)
    has_runs = any(line.run for line in lines)
    header = [*(["Run"] if has_runs else []), *short_names(names), "Seeds", f"Last {metric}", "95 % CI"]
    header += [f"Best {metric}", "Best by"]
    rows = [
        [
            *([line.run] if has_runs else []),
            *(show_value(value) for value in line.values.values()),
            f"{line.last.n if line.last else 0} of {line.seeds}",
            _spread(line.last, metric),
            _interval(line.last, metric),
            _spread(line.best, metric),
            ", ".join([*(["last"] if line.is_best_last else []), *(["best"] if line.is_best else [])]),
        ]
        for line in lines
    ]
    return [header, *rows], has_runs + len(names)


def as_markdown(lines: Sequence[Line], metric: str) -> str:
    """Return the table in Markdown."""
    return f"{markdown_table(*cells_of(lines, metric))}\n{NOTE}\n"


def as_csv(lines: Sequence[Line], metric: str) -> str:
    """Return the table as comma-separated values, numbers in full."""
    text = io.StringIO()
    records = as_dicts(lines, metric)
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def as_dicts(lines: Sequence[Line], metric: str) -> list[dict[str, Any]]:
    """Return the table as plain values; what is unknown is None."""
    return [
        {
            "run": line.run,
            **{
                name: value if isinstance(value, int | float | str) else json.dumps(value)
                for name, value in line.values.items()
            },
            "seeds": line.seeds,
            "finished": line.last.n if line.last else 0,
            "metric": metric,
            **_numbers("last", line.last),
            **_numbers("best", line.best),
            "is_best_last": line.is_best_last,
            "is_best": line.is_best,
        }
        for line in lines
    ]


def show_value(value: Any) -> str:
    """Return a setting's value as text: that of a text as it stands, else as TOML has it."""
    return value if isinstance(value, str) else json.dumps(value)


def _numbers(name: str, found: Estimate | None) -> dict[str, float | None]:
    return {
        f"{name}_mean": found.mean if found else None,
        f"{name}_std": found.std if found else None,
        f"{name}_ci_low": found.low if found else None,
        f"{name}_ci_high": found.high if found else None,
    }


def _spread(found: Estimate | None, metric: str) -> str:
    if found is None:
        return DASH
    if metric.endswith("accuracy"):
        return f"{100 * found.mean:.2f}" + ("" if found.std is None else f" ± {100 * found.std:.2f}") + " %"
    return f"{found.mean:.4g}" + ("" if found.std is None else f" ± {found.std:.2g}")


def _interval(found: Estimate | None, metric: str) -> str:
    if found is None or found.low is None or found.high is None:
        return DASH
    if metric.endswith("accuracy"):
        return f"{100 * found.low:.2f} to {100 * found.high:.2f} %"
    return f"{found.low:.4g} to {found.high:.4g}"
