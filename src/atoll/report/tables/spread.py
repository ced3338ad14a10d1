"""The spread over seeds: runs that differ in their seed alone, as mean and standard deviation."""

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
from atoll.runs.columns import is_built_in, title_of

SPREAD_NOTE = "Last probe of finished runs: mean ± sample standard deviation over seeds."
_TITLES = {
    "train_loss": "Final loss",
    "test_accuracy": "Final accuracy",
    "ari": "Final ARI",
    "parameter_error": "Final parameter error",
}


@dataclass(frozen=True)
class Moments:
    """Mean and sample standard deviation (n - 1 below) of n values; the deviation of one value is None."""

    n: int
    mean: float
    std: float | None


@dataclass(frozen=True)
class Spread:
    """Finished runs that are equal but for their seed, and the moments of their last values, by column.

    A column is left out where not every run of the group has a last value.
    """

    panel: str
    label: str
    seeds: tuple[int, ...]
    final: dict[str, Moments]


def spread_over_seeds(runs: Sequence[Run]) -> list[Spread]:
    """Group finished runs whose settings are equal but for seed and label, and sum each group up.

    Groups come in the order of their first run; a seed that comes twice counts once. Returns nothing where no
    group has two seeds, so that there is no spread.
    """
    groups = defaultdict[str, dict[int, Run]](dict)
    for run in runs:
        if run.finished:
            groups[setting_of(run)].setdefault(seed_of(run), run)
    if all(len(members) < 2 for members in groups.values()):
        return []
    return [_sum_up(members) for members in groups.values()]


def setting_of(run: Run) -> str:
    """Return what runs share that differ in seed and label alone."""
    settings = {name: value for name, value in run.config.items() if name not in ("seed", "label")}
    return json.dumps(settings, sort_keys=True, default=str)


def seed_of(run: Run) -> int:
    """Return a run's seed."""
    return int(run.config.get("seed", 0))


def label_of_seeds(runs: Sequence[Run]) -> str:
    """Return what runs of one setting are called together."""
    return _common_label([str(run.config.get("label") or run.name) for run in runs]) or runs[0].name


def spread_as_markdown(spreads: Sequence[Spread]) -> str:
    """Return the spreads as a Markdown table with aligned columns; what is unknown is an en dash."""
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
    """Return the spreads as a table for the terminal; many columns of own probes are left to `tables_as_rich`."""
    shown = [name for name in _shown(spreads) if name in _TITLES or len(_probed(spreads)) <= MAX_PROBED]
    return rich_table(_cells(spreads, shown), _texts(spreads), title, SPREAD_NOTE)


def tables_as_rich(rows: Sequence[Row], spreads: Sequence[Spread]) -> list[Table]:
    """Return all that a terminal shows of runs: each, the spread over seeds, and what there was no room for."""
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
    """Return the words that the labels begin with alike, without a word for the seed that follows in each.

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
    """Return the columns that some group has, the usual ones first."""
    return sorted({name for spread in spreads for name in spread.final}, key=_rank)


def _probed(spreads: Sequence[Spread]) -> list[str]:
    """Return the columns of the users' own probes."""
    return [name for name in _shown(spreads) if name not in _TITLES]


def _cells(spreads: Sequence[Spread], shown: Sequence[str] | None = None) -> list[list[str]]:
    """Return the table as text, its header first; panels only where some group has one."""
    panels = _texts(spreads) > 1
    shown = _shown(spreads) if shown is None else shown
    titles = (_TITLES.get(name) or f"Final {title_of(name).lower()}" for name in shown)
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
    """Order the usual columns first, then those of own probes by name."""
    return list(_TITLES).index(column) if column in _TITLES else len(_TITLES), column


def _write(name: str, moments: Moments) -> str:
    if name.endswith("accuracy"):
        spread = "" if moments.std is None else f" ± {100 * moments.std:.2f}"
        return f"{100 * moments.mean:.2f}{spread} %"
    if name == "ari":
        return f"{moments.mean:.3f}" + ("" if moments.std is None else f" ± {moments.std:.3f}")
    return f"{moments.mean:.4g}" + ("" if moments.std is None else f" ± {moments.std:.2g}")
