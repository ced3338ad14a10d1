"""Tables: what it takes each run to reach a target, and where each run ends."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from atoll.report.runs import Run
from atoll.report.style import format_bytes, format_seconds
from atoll.runs.columns import is_built_in, title_of
from atoll.support.arrays import Floats
from atoll.support.errors import InputError

DASH = "\u2013"
MAX_TARGETS = 3
FIRST = "the first probe that meets it"
STABLE = "the first probe from which on all meet it"


@dataclass(frozen=True)
class Reached:
    """The probe at which a run has met a target; None where none does or nothing was recorded."""

    target: float
    round: int | None
    client_updates: int | None
    virtual_time: float | None
    bytes: int | None


@dataclass(frozen=True)
class Row:
    """One run's line of the table: where it ended, its best accuracy, and the cost of each target.

    `final` has the last values of what the users' own probes measured, by column; `stable` says whether a target is
    met by the first probe from which on all meet it.
    """

    panel: str
    label: str
    folder: str
    finished: bool
    final_train_loss: float | None
    final_test_accuracy: float | None
    best_test_accuracy: float | None
    final_ari: float | None
    metric: str
    targets: tuple[Reached, ...]
    final: dict[str, float | None] = field(default_factory=dict)
    stable: bool = False


def rounds_to_target(
    runs: Sequence[Run],
    targets: Sequence[float] | None = None,
    metric: str = "test_accuracy",
    stable: bool = False,
) -> list[Row]:
    """Find each run's first probe that meets each target, without interpolation, and its last values.

    Targets are in the metric's own unit (accuracies 0 to 1). A metric whose name ends in "loss" or "error" is met at
    or below the target, any other at or above; if `stable`, by the first probe from which on all meet it. By default
    up to three multiples of 5 % are chosen that some run reaches and that tell the runs apart; a loss has no default
    targets. Raises InputError for a metric that no run has recorded.
    """
    if runs and not any(metric in run.rows for run in runs):
        raise InputError(f"metric = {metric!r} is in no run; the columns are {', '.join(sorted(runs[0].rows))}.")
    if targets is None:
        targets = [] if falls(metric) else _choose_targets(runs, metric, stable)
    return [
        Row(
            panel=run.panel,
            label=run.label,
            folder=run.folder.resolve().name,
            finished=run.finished,
            final_train_loss=_number(run.rows["train_loss"][-1]),
            final_test_accuracy=_number(run.rows["test_accuracy"][-1]),
            best_test_accuracy=_number(np.fmax.reduce(run.rows["test_accuracy"])),
            final_ari=_number(run.rows["ari"][-1]) if "ari" in run.rows else None,
            metric=metric,
            targets=tuple(_reach(run, target, metric, stable) for target in targets),
            final={name: _number(values[-1]) for name, values in run.rows.items() if not is_built_in(name)},
            stable=stable,
        )
        for run in runs
    ]


def first_met(values: Floats, target: float, lower: bool = False, stable: bool = False) -> int | None:
    """Return the first of the probes [probes] that is at the target or above, or below if `lower`; None without one.

    If `stable`, all later ones must be so too. A probe without a value, nan, neither meets a target nor loses it.

    >>> values = np.array([0.1, 0.6, 0.5, np.nan, 0.7])
    >>> first_met(values, 0.6), first_met(values, 0.6, stable=True), first_met(values, 0.8)
    (1, 4, None)
    """
    met = values <= target if lower else values >= target
    if stable:
        met &= np.logical_and.accumulate((met | np.isnan(values))[::-1])[::-1]
    return int(np.argmax(met)) if met.any() else None


def falls(column: str) -> bool:
    """Return whether less of a column is better."""
    return column.endswith(("loss", "error"))


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain values for JSON; what is unknown or unreached is None.

    As in the other tables, the adjusted Rand index and own probes' columns are there only if some run has them;
    `stable` only if it is so.
    """
    unused = (set() if _has_ari(rows) else {"final_ari"}) | (set() if _probed(rows) else {"final"})
    unused |= set() if any(row.stable for row in rows) else {"stable"}
    return [{name: value for name, value in asdict(row).items() if name not in unused} for row in rows]


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table with aligned columns; what is unreached is an en dash."""
    texts = 2 if any(row.panel for row in rows) else 1
    note = _note(rows, "round / client updates / virtual time / bytes sent")
    return markdown_table(_cells(rows), texts) + (f"\n{note}\n" if note else "")


def markdown_table(cells: Sequence[Sequence[str]], texts: int) -> str:
    """Return a table, its header first, in Markdown: the first `texts` columns stand left, the others right."""
    header, *body = [[cell.replace("|", "\\|") for cell in line] for line in cells]
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    rule = ["-" * width if index < texts else "-" * (width - 1) + ":" for index, width in enumerate(widths)]
    lines = [
        [cell.ljust(width) if index < texts else cell.rjust(width) for index, (cell, width) in enumerate(pairs)]
        for pairs in (list(zip(line, widths, strict=True)) for line in (header, *body))
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], rule, *lines[1:]))


def as_rich(rows: Sequence[Row], title: str = "") -> Table:
    """Return the rows as a table for the terminal; what is unreached is an en dash.

    To fit, costs are rounds alone, and probes of single clients are their mean and the worst.
    """
    texts = 2 if any(row.panel for row in rows) else 1
    return rich_table(_cells(rows, _round, brief=True), texts, title, _note(rows, "round"))


def without_spread(columns: Sequence[str]) -> list[str]:
    """Leave out the deviation and the percentile of what a probe measures of single clients, see `spread_of`."""
    spread = {name for column in columns for name in (f"{column}_std", f"p10_{column}", f"p90_{column}")}
    return [column for column in columns if column not in spread]


def _note(rows: Sequence[Row], costs: str) -> str:
    if not any(row.targets for row in rows):
        return ""
    return f"To a target: {costs} of {STABLE if rows[0].stable else FIRST}."


def rich_table(cells: Sequence[Sequence[str]], texts: int, title: str = "", note: str = "") -> Table:
    """Return a table, its header first, for the terminal: the first `texts` columns stand left, the others right."""
    header, *body = cells
    table = Table(title=title or None, caption=note or None)
    for index, name in enumerate(header):
        # A narrow terminal folds long labels, since without their ends they could not be told apart.
        text = index < texts
        table.add_column(name, justify="left" if text else "right", overflow="fold" if text else "ellipsis")
    for line in body:
        table.add_row(*map(Text, line))  # Text, so that brackets in a label are no markup
    return table


def _has_ari(rows: Sequence[Row]) -> bool:
    return any(row.final_ari is not None for row in rows)


def _probed(rows: Sequence[Row]) -> list[str]:
    """Return the columns of the users' own probes."""
    return list(dict.fromkeys(name for row in rows for name in row.final))


def _first_probe(run: Run, target: float, metric: str, stable: bool) -> int | None:
    return first_met(run.rows.get(metric, np.empty(0)), target, falls(metric), stable)


def _reach(run: Run, target: float, metric: str, stable: bool) -> Reached:
    probe = _first_probe(run, target, metric, stable)
    if probe is None:
        return Reached(target, None, None, None, None)
    at = {name: _number(column[probe]) for name, column in run.rows.items()}
    up, down = _whole(at["bytes_up"]), _whole(at["bytes_down"])
    sent = None if up is None or down is None else up + down
    return Reached(target, _whole(at["round"]), _whole(at["client_updates"]), at["virtual_time"], sent)


def _choose_targets(runs: Sequence[Run], metric: str, stable: bool) -> list[float]:
    """Choose the highest multiple of 5 % that all runs reach, the highest any reaches, and one between."""
    probes = {k / 20: [_first_probe(run, k / 20, metric, stable) for run in runs] for k in range(1, 21)}
    candidates = [target for target, firsts in probes.items() if _tells_apart(runs, firsts)]
    if not candidates:
        return []
    top = candidates[-1]
    low = max((target for target in candidates if None not in probes[target]), default=top)
    middle = min(candidates, key=lambda target: abs(target - (low + top) / 2))
    chosen = list(dict.fromkeys([low, top, middle, *reversed(candidates)]))
    return sorted(chosen[:MAX_TARGETS])


def _tells_apart(runs: Sequence[Run], firsts: Sequence[int | None]) -> bool:
    """Say whether runs reach a target at different rounds or, for a single run, after its first probe."""
    if len(runs) == 1:
        return bool(firsts[0])
    rounds = {None if first is None else run.rows["round"][first] for run, first in zip(runs, firsts, strict=True)}
    return len(rounds) > 1


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _cells(rows: Sequence[Row], cost: Callable[[Reached], str] | None = None, brief: bool = False) -> list[list[str]]:
    """Return the table as text, its header first; panel, adjusted Rand index and probes only where there are any."""
    panels, aris, probed = any(row.panel for row in rows), _has_ari(rows), _probed(rows)
    probed = without_spread(probed) if brief else probed
    header = [*(["Panel"] if panels else []), "Run", "Final loss", "Final accuracy", "Best accuracy"]
    header += [*(["ARI"] if aris else []), *map(title_of, probed)]
    if rows:
        header += [f"To {_name(rows[0].metric, r.target)}" for r in rows[0].targets]
    return [header] + [
        [
            *([row.panel] if panels else []),
            row.label if row.finished else f"{row.label} (unfinished)",
            DASH if row.final_train_loss is None else f"{row.final_train_loss:.4g}",
            _percent(row.final_test_accuracy),
            _percent(row.best_test_accuracy),
            *([DASH if row.final_ari is None else f"{row.final_ari:.3f}"] if aris else []),
            *(show_number(name, row.final.get(name)) for name in probed),
            *map(cost or _cost, row.targets),
        ]
        for row in rows
    ]


def _name(metric: str, target: float) -> str:
    value = f"{100 * target:g} %" if metric.endswith("accuracy") else f"{target:g}"
    return value if metric == "test_accuracy" else f"{metric} {value}"


def show_number(column: str, value: float | None) -> str:
    """Return a column's value as text: what is called an accuracy in per cent.

    >>> show_number("worst_accuracy", 0.25), show_number("gap", 0.25)
    ('25.00 %', '0.25')
    """
    if column.endswith("accuracy"):
        return _percent(value)
    return DASH if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.2f} %"


def _round(reached: Reached) -> str:
    return DASH if reached.round is None else f"{reached.round:,}"


def _cost(reached: Reached) -> str:
    parts = [
        _round(reached),
        DASH if reached.client_updates is None else f"{reached.client_updates:,}",
        DASH if reached.virtual_time is None else format_seconds(reached.virtual_time),
        DASH if reached.bytes is None else format_bytes(reached.bytes),
    ]
    return DASH if set(parts) == {DASH} else " / ".join(parts)
