"""The cost of reaching a target in each run, and its final results."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from atoll.methods.named_methods import METHODS
from atoll.methods.parts.kind import kind_of
from atoll.report.reading.runs import Run
from atoll.runs.columns import is_built_in, rises
from atoll.settings.signatures import asks_for
from atoll.support.arrays import Floats
from atoll.support.errors import InputError

COSTS = ("round", "client_updates", "virtual_time", "bytes_sent")
"""Costs of reaching a target: fields of `Reached`."""
MAX_TARGETS = 3
SAME_WORK = 1.1  # ratio of updates per round up to which rounds count as equal work
FIRST = "the first measurement that meets it"
CLOCKS_NOTE = "Virtual times with a network of aggregators are not comparable with those without one."
OWN_SECONDS = "*"
"""Marks runs whose virtual times are their method's own."""
OWN_SECONDS_NOTE = f"{OWN_SECONDS} Its virtual times are its method's own, not those of the clients' clock."
STABLE = "the first measurement from which all later ones meet it"


@dataclass(frozen=True)
class Reached:
    """The cost at which a run met a target; None if it did not, or nothing was recorded."""

    target: float
    round: int | None
    client_updates: int | None
    virtual_time: float | None
    bytes_sent: int | None


@dataclass(frozen=True)
class Row:
    """One run's line of the table: its final results, its best accuracy, and the cost of each target.

    `final` has the last values of custom evaluation metrics, by column, and the test loss if there is no accuracy;
    `stable` says whether a target counts as met only once all later values meet it, `lead` which cost compares the runs
    best, `own_seconds` whether virtual times are a custom method's own, and `on_network` whether they are a network's.
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
    lead: str = "round"
    own_seconds: bool = False
    on_network: bool = False

    @property
    def shown_label(self) -> str:
        """The label, marked if the run is unfinished, or has seconds of its own."""
        return self.label + OWN_SECONDS * self.own_seconds + " (unfinished)" * (not self.finished)


def rounds_to_target(
    runs: Sequence[Run], targets: Sequence[float] | None = None, metric: str = "test_accuracy", stable: bool = False
) -> list[Row]:
    """Return the cost at which each run first meets each target, without interpolation, and its final results.

    Targets are in the metric's own unit (accuracies 0 to 1). A metric whose name ends in "accuracy", "score" or "ari"
    meets a target at or above it, any other at or below; if `stable`, all later values must meet it too. The default is
    up to three multiples of 5 % that some run reaches and that distinguish the runs; other metrics have no default
    targets. Raises InputError for a metric that no run has recorded.
    """
    if not isinstance(runs, Sequence):
        raise InputError(f"runs: must be a list, as atoll.find_runs returns it, it is {type(runs).__name__!r}")
    if runs and not any(metric in run.rows for run in runs):
        raise InputError(f"metric = {metric!r} is in no run; the columns are {', '.join(sorted(runs[0].rows))}")
    lead = lead_of(runs)
    if targets is None:
        targets = _choose_targets(runs, metric, stable) if rises(metric) else []
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
            final={name: _number(values[-1]) for name, values in run.rows.items() if is_shown(run, name)},
            stable=stable,
            lead=lead,
            own_seconds=run.own_seconds,
            on_network=is_on_network(run),
        )
        for run in runs
    ]


def is_shown(run: Run, column: str) -> bool:
    """Return whether the table has a column's last value besides the usual ones."""
    return not is_built_in(column) or (column == "test_loss" and not np.isfinite(run.rows["test_accuracy"]).any())


def lead_of(runs: Sequence[Run]) -> str:
    """Return the cost that compares runs best: rounds, virtual time or, if their clocks differ in kind, client updates.

    Rounds do if one is the same work in all runs. It is not if a method's rounds are local steps (`hierarchical`,
    `hierfavg`), nor if the runs differ in client updates per round.
    """
    if any(map(is_on_network, runs)):
        rounds_compare = not any(np.isfinite(run.rows["virtual_time"]).any() for run in runs)
    else:
        done = [run.rows["client_updates"][-1] / run.rows["round"][-1] for run in runs if run.rows["round"][-1] > 0]
        known = [float(pace) for pace in done if np.isfinite(pace)]
        rounds_compare = not known or max(known) <= SAME_WORK * min(known)
    if rounds_compare:
        return "round"
    return "client_updates" if len({clock_of([run]) for run in runs}) > 1 else "virtual_time"


def clock_of(runs: Sequence[Run]) -> str:
    """Return the kind of clock of a setting's runs; virtual times of different kinds are not comparable."""
    kind = "network" if is_on_network(runs[0]) else "clients"
    return f"{kind}, own" if any(run.own_seconds for run in runs) else kind


def is_on_network(run: Run) -> bool:
    """Return whether a run's virtual times are those of a network of aggregators, not of clients' own uploads."""
    method = run.config.get("method")
    name = str(method.get("name")) if isinstance(method, dict) else ""
    return name in METHODS and asks_for(kind_of(METHODS[name]).make, "network")


def first_met(values: Floats, target: float, lower: bool = False, stable: bool = False) -> int | None:
    """Return the index of the first of the values [rows] at or above the target, or below if `lower`; None without one.

    If `stable`, all later ones must meet it too. A missing value, nan, neither meets a target nor misses it.
    """
    met = values <= target if lower else values >= target
    if stable:
        met &= np.logical_and.accumulate((met | np.isnan(values))[::-1])[::-1]
    return int(np.argmax(met)) if met.any() else None


def _first_probe(run: Run, target: float, metric: str, stable: bool) -> int | None:
    return first_met(run.rows.get(metric, np.empty(0)), target, not rises(metric), stable)


def _reach(run: Run, target: float, metric: str, stable: bool) -> Reached:
    probe = _first_probe(run, target, metric, stable)
    if probe is None:
        return Reached(target, None, None, None, None)
    costs = (run.rows["round"], run.rows["client_updates"], run.rows["virtual_time"], run.bytes_sent)
    rounds, updates, seconds, sent = (_number(column[probe]) for column in costs)
    return Reached(target, _whole(rounds), _whole(updates), seconds, _whole(sent))


def _choose_targets(runs: Sequence[Run], metric: str, stable: bool) -> list[float]:
    """Choose the highest multiple of 5 % that all runs reach, the highest any reaches, and one between."""
    probes = {k / 20: [_first_probe(run, k / 20, metric, stable) for run in runs] for k in range(1, 21)}
    candidates = [target for target, firsts in probes.items() if _tells_apart(runs, firsts)]
    candidates = [target for target in candidates if 0 not in probes[target]] or candidates  # met before training
    if not candidates:
        return []
    top = candidates[-1]
    low = max((target for target in candidates if None not in probes[target]), default=top)
    middle = min(candidates, key=lambda target: abs(target - (low + top) / 2))
    return sorted([*dict.fromkeys([low, top, middle, *reversed(candidates)])][:MAX_TARGETS])


def _tells_apart(runs: Sequence[Run], firsts: Sequence[int | None]) -> bool:
    """Return whether runs reach a target at different costs or, for a single run, after its first row."""
    if len(runs) == 1:
        return bool(firsts[0])
    lead = lead_of(runs)
    return len({None if first is None else run.rows[lead][first] for run, first in zip(runs, firsts, strict=True)}) > 1


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
