"""The trials of a search, and their table."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.report.tables import DASH, markdown_table
from atoll.sweep.axes import short_names

NOTE = "Pruned trials were stopped early because they lagged behind; their value is that of their last probe."


@dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        number: from 0, in the order of proposals.
        texts: the values, as `--set` takes them, by setting.
        state: complete, pruned, fail or running.
        rounds: done at the last probe.
        value: of the metric at the last probe; None if there is none.
    """

    number: int
    texts: Mapping[str, str]
    state: str
    rounds: int
    value: float | None

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"trial-{self.number:03d}"


def cells_of(trials: Sequence[Trial], best: Trial | None, metric: str) -> tuple[list[list[str]], int]:
    """Return the table as text, its header first, and how many of its columns are texts."""
    names = list(trials[0].texts)
    header = ["Trial", *short_names(names), "State", "Rounds", metric, ""]
    rows = [
        [
            str(trial.number),
            *(_shorten(trial.texts.get(name, DASH)) for name in names),
            trial.state,
            f"{trial.rounds:,}",
            _show(trial.value, metric),
            "best" if trial == best else "",
        ]
        for trial in trials
    ]
    return [header, *rows], len(names) + 2


def as_markdown(trials: Sequence[Trial], best: Trial | None, metric: str) -> str:
    """Return the table in Markdown."""
    return f"{markdown_table(*cells_of(trials, best, metric))}\n{NOTE}\n"


def as_csv(trials: Sequence[Trial], best: Trial | None, metric: str) -> str:
    """Return the table as comma-separated values, numbers in full."""
    text = io.StringIO()
    records = as_dicts(trials, best, metric)
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def as_dicts(trials: Sequence[Trial], best: Trial | None, metric: str) -> list[dict[str, Any]]:
    """Return the table as plain values; what is unknown is None."""
    return [
        {
            "trial": trial.number,
            "folder": trial.name,
            **trial.texts,
            "state": trial.state,
            "rounds": trial.rounds,
            "metric": metric,
            "value": trial.value,
            "is_best": trial == best,
        }
        for trial in trials
    ]


def _shorten(text: str) -> str:
    """Return a number with four digits, and other text as it is.

    >>> _shorten("0.012345678"), _shorten("sgd"), _shorten("20")
    ('0.01235', 'sgd', '20')
    """
    try:
        return text if len(text) <= 6 else f"{float(text):.4g}"
    except ValueError:
        return text


def _show(value: float | None, metric: str) -> str:
    if value is None:
        return DASH
    return f"{100 * value:.2f} %" if metric.endswith("accuracy") else f"{value:.4g}"
