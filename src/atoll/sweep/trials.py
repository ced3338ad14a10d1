"""The trials of a search, and their table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.report.tables.formats import DASH, TextTable
from atoll.sweep.axes import short_names
from atoll.sweep.goal import Goal
from atoll.sweep.sweep_table import show

NOTE = "Pruned trials were stopped early because they lagged behind; their value is from their last evaluation."
_NOTE_OF_COSTS = "A trial that missed the target has no value."


@dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        number: from 0, in the order proposed.
        texts: each setting's value, as `--set` takes it.
        state: complete, pruned, fail or running.
        rounds: completed at the last probe.
        value: the metric at the last probe; None if there is none.
    """

    number: int
    texts: Mapping[str, str]
    state: str
    rounds: int
    value: float | None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"trial-{self.number:03d}"


def table_of(trials: Sequence[Trial], best: Trial | None, goal: Goal) -> TextTable:
    """Return the trials as a table of text."""
    names = list(trials[0].texts)
    header = ["Trial", *short_names(names), "State", "Rounds", goal.title, ""]
    rows = [
        [
            str(trial.number),
            *(_shorten(trial.texts.get(name, DASH)) for name in names),
            trial.state,
            f"{trial.rounds:,}",
            DASH if trial.value is None else show(trial.value, goal),
            "best" if trial == best else "",
        ]
        for trial in trials
    ]
    return TextTable([header, *rows], len(names) + 2, NOTE if goal.target is None else _NOTE_OF_COSTS)


def as_dicts(trials: Sequence[Trial], best: Trial | None, goal: Goal) -> list[dict[str, Any]]:
    """Return the table as plain values; unknown ones are None."""
    return [
        {
            "trial": trial.number,
            "folder": trial.name,
            **trial.texts,
            "state": trial.state,
            "rounds_done" if "rounds" in trial.texts else "rounds": trial.rounds,
            "metric": goal.metric,
            **({} if goal.target is None else {"target": goal.target}),
            "value": trial.value,
            "is_best": trial == best,
        }
        for trial in trials
    ]


def _shorten(text: str) -> str:
    """Return a long number with four digits, and other text unchanged."""
    try:
        return text if len(text) <= 6 else f"{float(text):.4g}"
    except ValueError:
        return text
