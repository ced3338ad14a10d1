"""The spread over seeds: mean and standard deviation of runs that differ only in their seed."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from atoll.report.reading.runs import Run
from atoll.report.tables.formats import DASH, csv_table, latex_table, markdown_table, rich_table, upright
from atoll.report.tables.run_tables import Row
from atoll.report.tables.writing import MAX_PROBED, as_rich, probes_as_rich
from atoll.runs.columns import column_title, is_built_in

SPREAD_NOTE = "Final values of finished runs: mean ± sample standard deviation over seeds."
_TITLES = {
    "train_loss": "Final loss",
    "test_accuracy": "Final accuracy",
    "ari": "Final ARI",
    "parameter_error": "Final parameter error",
}


@dataclass(frozen=True)
class Moments:
    """Mean and sample standard deviation (divisor n - 1) of n values; the deviation of one value is None."""

    n: int
    mean: float
    std: float | None


@dataclass(frozen=True)
class Spread:
    """Finished runs that differ only in their seed, and the moments of their final values, by column.

    A column is left out unless every run of the group has a final value.
    """

    panel: str
    label: str
    seeds: tuple[int, ...]
    final: dict[str, Moments]


def spread_over_seeds(runs: Sequence[Run]) -> list[Spread]:
    """Group finished runs that differ only in seed and label, and return the spread of each group.

    Groups are in the order of their first run; a repeated seed counts once. Returns nothing if no group has two seeds.
    """
    groups = defaultdict[str, dict[int, Run]](dict)
    for run in runs:
        if run.finished:
            groups[setting_of(run)].setdefault(seed_of(run), run)
    if all(len(members) < 2 for members in groups.values()):
        return []
    return [_sum_up(members) for members in groups.values()]


def setting_of(run: Run) -> str:
    """Return a text that runs share exactly if they differ only in seed and label."""
    settings = {name: value for name, value in run.config.items() if name not in ("seed", "label")}
    return json.dumps(settings, sort_keys=True, default=str)


def seed_of(run: Run) -> int:
    """Return a run's seed."""
    return int(run.config.get("seed", 0))


def label_of_seeds(runs: Sequence[Run]) -> str:
    """Return the common label of runs that differ only in their seed."""
    return _common_label([str(run.config.get("label") or run.name) for run in runs]) or runs[0].name


def spread_as_markdown(spreads: Sequence[Spread]) -> str:
    """Return the spreads as a Markdown table with aligned columns; unknown values are en dashes."""
    return markdown_table(_cells(spreads), _texts(spreads)) + f"\n{SPREAD_NOTE}\n"


def spread_as_latex(spreads: Sequence[Spread]) -> str:
    """Return the spreads as a LaTeX table with booktabs' rules."""
    return latex_table(_cells(spreads), _texts(spreads), SPREAD_NOTE)


def spread_as_csv(spreads: Sequence[Spread]) -> str:
    """Return the spreads as comma-separated values, numbers in full, columns such as test_accuracy_mean."""
    return csv_table(
        [
            {"panel": spread.panel, "label": spread.label, "seeds": " ".join(map(str, spread.seeds))}
            | {f"{column}_{name}": each for column, found in spread.final.items() for name, each in vars(found).items()}
            for spread in spreads
        ]
    )


def spread_as_rich(spreads: Sequence[Spread], title: str = "") -> Table:
    """Return the spreads as a table for the terminal; too many custom metrics are left to `tables_as_rich`."""
    shown = [name for name in _shown(spreads) if name in _TITLES or len(_probed(spreads)) <= MAX_PROBED]
    return rich_table(_cells(spreads, shown), _texts(spreads), title, SPREAD_NOTE)


def tables_as_rich(rows: Sequence[Row], spreads: Sequence[Spread]) -> list[Table]:
    """Return all tables for the terminal: runs, the spread over seeds, and metrics that did not fit."""
    tables = [as_rich(rows), *([spread_as_rich(spreads)] if spreads else [])]
    if (probed := _probed(spreads)) and len(probed) > MAX_PROBED:
        header, *lines = _cells(spreads, probed)
        texts = _texts(spreads)
        cells = [["Mean ± deviation over seeds", *header[texts + 1 :]]]
        cells += [[" ".join(filter(None, line[:texts])), *line[texts + 1 :]] for line in lines]
        return [*tables, rich_table(upright(cells), 1)]
    return [*tables, *([probes] if (probes := probes_as_rich(rows)) else [])]


def _sum_up(members: dict[int, Run]) -> Spread:
    runs = list(members.values())
    last = {
        name: [float(run.rows[name][-1]) for run in runs]
        for name in (*_TITLES, *(name for name in runs[0].rows if not is_built_in(name)))
        if all(name in run.rows for run in runs)
    }
    return Spread(
        panel=runs[0].panel,
        label=label_of_seeds(runs),
        seeds=tuple(members),
        final={name: _moments(values) for name, values in last.items() if np.isfinite(values).all()},
    )


def _moments(values: Sequence[float]) -> Moments:
    """Return the moments of at least one value.

    >>> _moments([1.0, 3.0])
    Moments(n=2, mean=2.0, std=1.4142135623730951)
    """
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Moments(len(values), float(np.mean(values)), std)


def _common_label(labels: Sequence[str]) -> str:
    """Return the words with which all labels begin, without a trailing word for the seed.

    >>> _common_label(["CFL-MGD, seed 10", "CFL-MGD, seed 11"])
    'CFL-MGD'
    """
    if len(set(labels)) == 1:
        return labels[0]
    words: list[str] = []
    for column in zip(*(label.split() for label in labels), strict=False):
        if len(set(column)) > 1:
            break
        words.append(column[0])
    return re.sub(r"(\bseed)?[\s,;:(\[/|–-]*$", "", " ".join(words)).rstrip(" ,;:([/|–-")


def _texts(spreads: Sequence[Spread]) -> int:
    return 2 if any(spread.panel for spread in spreads) else 1


def _shown(spreads: Sequence[Spread]) -> list[str]:
    """Return the columns of any group, the usual ones first."""
    return sorted({name for spread in spreads for name in spread.final}, key=_rank)


def _probed(spreads: Sequence[Spread]) -> list[str]:
    """Return the columns of custom evaluation metrics."""
    return [name for name in _shown(spreads) if name not in _TITLES]


def _cells(spreads: Sequence[Spread], shown: Sequence[str] | None = None) -> list[list[str]]:
    """Return the table as text, its header first; with panels only if some group has one."""
    panels = _texts(spreads) > 1
    shown = _shown(spreads) if shown is None else shown
    titles = (_TITLES.get(name) or f"Final {column_title(name).lower()}" for name in shown)
    header = [*(["Panel"] if panels else []), "Run", "Seeds", *titles]
    return [header] + [
        [
            *([spread.panel] if panels else []),
            spread.label,
            str(len(spread.seeds)),
            *(_write(name, spread.final[name]) if name in spread.final else DASH for name in shown),
        ]
        for spread in spreads
    ]


def _rank(column: str) -> tuple[int, str]:
    """Order the usual columns first, then custom ones by name."""
    return list(_TITLES).index(column) if column in _TITLES else len(_TITLES), column


def _write(name: str, moments: Moments) -> str:
    if name.endswith("accuracy"):
        spread = "" if moments.std is None else f" ± {100 * moments.std:.2f}"
        return f"{100 * moments.mean:.2f}{spread} %"
    if name == "ari":
        return f"{moments.mean:.3f}" + ("" if moments.std is None else f" ± {moments.std:.3f}")
    return f"{moments.mean:.4g}" + ("" if moments.std is None else f" ± {moments.std:.2g}")
