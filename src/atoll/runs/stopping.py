"""What ends a run before its last round: a metric's value, no better one for some rounds, or a function."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from atoll.experiment.experiment import Experiment
from atoll.experiment.faults import is_counted, usual_norms
from atoll.runs.columns import LOSSES, SPENT, rises
from atoll.runs.named_probes import probe_of
from atoll.runs.run_folder import Row
from atoll.support.errors import InputError, refusing
from atoll.support.wording import counted, unknown

OnRow = Callable[[Row], object]

_NUMBER = r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?"
_FORM = re.compile(rf"(\w+)\s*(?:(>=|<=)\s*({_NUMBER})|patience\s+(\d+))")
_COLUMNS = ("train_loss", "test_loss", "test_accuracy")
_COSTS = ("virtual_time", "wall_time", "client_updates", "bytes_up", "bytes_down")


@dataclass(frozen=True)
class StopRule:
    """One condition of `run.stop_at`.

    Attributes:
        metric: a column of the rows.
        sign: ">=", "<=" or "patience".
        limit: the value to reach, or the rounds without a better one.
    """

    metric: str
    sign: str
    limit: float

    def why(self, rows: Sequence[Row]) -> str:
        """Return why a run stops at the last of its rows; empty if it does not."""
        value = rows[-1].get(self.metric)
        if not isinstance(value, int | float):
            return ""
        at = f"in round {rows[-1]['round']}"
        if self.sign == "patience":
            known = [row for row in rows if row.get(self.metric) is not None]
            best = (max if rises(self.metric) else min)(known, key=lambda row: float(row[self.metric]))
            waited, held = rows[-1]["round"] - best["round"], f"{self.metric} = {best[self.metric]:g}"
            told = f"{at}, {counted(waited, 'round')} after its best {held} of round {best['round']}"
            return told if waited >= self.limit else ""
        met = bool(value >= self.limit if self.sign == ">=" else value <= self.limit)
        return f"{at}, with {self.metric} = {value:g} {self.sign} {self.limit:g}" * met


def stop_rules(experiment: Experiment, probed: Sequence[str]) -> list[StopRule]:
    """Return the conditions of `run.stop_at`; the first that holds ends the run. `probed` are the probes' columns."""
    run = experiment.settings.run
    told = f"run.stop_at = {run.stop_at!r}"
    rules = []
    for text in re.split(r"\s+or\s+", (run.stop_at or "").strip()) if run.stop_at is not None else ():
        found = _FORM.fullmatch(text)
        if not found:
            forms = "'test_accuracy >= 0.9', 'test_loss <= 0.1', 'test_loss patience 5' (rounds), or several with 'or'"
            raise InputError(f"{told}: must be a column, >= or <= and a number, such as {forms}")
        if found[1] not in (known := [*_COLUMNS, *some_columns(experiment), *_COSTS, *probed]):
            probe = probe_of(found[1])
            missing = f"not recorded; run.probes = {[probe]} records it" if probe else unknown(found[1], known)
            raise InputError(f"{told}: {found[1]!r} is {missing}")
        if found[1].endswith("accuracy") and not experiment.clients.dealt.data.classes:
            raise InputError(f"{told}: the data have no classes, so there is no {found[1]}")
        limit = float(found[3] or found[4])
        if found[1].endswith("accuracy") and found[3] and limit > 1:
            raise InputError(f"{told}: accuracies are from 0 to 1; {limit:g} % is {limit / 100:g}")
        if found[4] and not limit:
            raise InputError(f"{told}: patience must be at least 1 round")
        if found[4] and limit < run.evaluate_every:
            each = f"run.evaluate_every = {run.evaluate_every}"
            raise InputError(f"{told}: {each} gives no evaluation in {limit:g} rounds; lower it, or wait longer")
        rules.append(StopRule(found[1], found[2] or "patience", limit))
    return rules


def some_columns(experiment: Experiment) -> Iterator[str]:
    """Yield the columns that only some runs have, as this one does."""
    planned, data = experiment.planned, experiment.clients.dealt.data
    if planned.tests_by_client:
        yield from ["ari"] * (data.groups is not None or len(data.turns) > 1)  # if groups are planted
    elif not planned.method.schedule.has_server:
        yield from ("mean_cluster_accuracy", "worst_cluster_accuracy")
    yield "local_loss" if planned.private is None else SPENT  # private clients report no loss
    if data.loss == "next-token":
        yield "perplexity"
    if not planned.method.rule.is_constant:
        yield "learning_rate"
    if is_counted(experiment.settings):
        yield from LOSSES
    if usual_norms(experiment.settings) != "off":
        yield "norm_limit"
    if experiment.settings.run.heterogeneity:
        yield from ("h_device", "h_cluster")


class Stopping:
    """Decides after every row whether the run stops.

    Attributes:
        why: why it stops; empty while it goes on.
    """

    def __init__(self, rules: Sequence[StopRule], on_row: OnRow | None = None) -> None:
        """Stop by rules, or once `on_row`, called with each new row, returns something true."""
        self.why = ""
        self._rules = rules
        self._on_row = on_row

    def resume(self, rows: Sequence[Row]) -> None:
        """Look at the rows of a run so far."""
        for count in range(2, len(rows) + 1):
            self._look(rows[:count])

    def take(self, rows: Sequence[Row]) -> None:
        """Look at the last row, which is new; before training, nothing ends a run."""
        if is_trained := len(rows) > 1:
            self._look(rows)
        returned = self._on_row and self._on_row(dict(rows[-1]))
        told = f"on_row: must return something true or false, it returned '{type(returned).__name__}'"
        with refusing(told, ValueError, RuntimeError):  # NumPy's and PyTorch's, of several numbers
            if returned and is_trained:
                self.why = self.why or f"in round {rows[-1]['round']}, because on_row returned a true value"

    def _look(self, rows: Sequence[Row]) -> None:
        self.why = self.why or next(filter(None, (rule.why(rows) for rule in self._rules)), "")
