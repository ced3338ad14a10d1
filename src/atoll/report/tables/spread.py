"""Results over seeds: of each setting the mean and its interval, costs of targets, and differences to a baseline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoll.report.reading.groups import Group, Panel, find_baseline, group_runs, make_panels, seed_of
from atoll.report.reading.runs import Run
from atoll.report.tables.run_tables import COSTS, Row, first_met, is_on_network, rounds_to_target
from atoll.runs.columns import is_built_in
from atoll.support.errors import InputError
from atoll.support.estimates import Estimate, estimate, holm, paired_p

USUAL = ("train_loss", "test_accuracy", "test_loss", "ari", "parameter_error")
"""Columns of results over seeds; the test loss only where there are no accuracies."""

COMPARED = ("test_accuracy", "test_loss", "train_loss")
"""What differences are of: the first of these whose final values are known."""


@dataclass(frozen=True)
class TargetSpread:
    """What a target costs over seeds.

    Attributes:
        target: in the unit of its metric.
        metric: the column that is to reach it.
        reached: how many seeds did.
        costs: by field of `Reached`; empty unless all seeds reached it, since a mean of the lucky ones is biased.
    """

    target: float
    metric: str
    reached: int
    costs: dict[str, Estimate]


@dataclass(frozen=True)
class Difference:
    """A setting's final values minus those of a baseline, paired by seed.

    Attributes:
        column: whose values.
        baseline: label of the baseline.
        estimate: mean, deviation and 95 % t interval of the differences, uncorrected.
        p: of a two-sided paired t test, corrected by Holm's method for all comparisons in the panel; None if all
            differences are equal, or a single seed is shared.
    """

    column: str
    baseline: str
    estimate: Estimate
    p: float | None


@dataclass(frozen=True)
class Spread:
    """Runs that differ only in seed and label, and the estimates of their final values, by column.

    Only finished runs count; `planned` includes the others, begun or not. A column is left out unless every finished
    run has a final value. `own_seconds` says whether virtual times are a custom method's own, and
    `on_network` whether a network's.
    """

    panel: str
    label: str
    seeds: tuple[int, ...]
    planned: int
    final: dict[str, Estimate]
    targets: tuple[TargetSpread, ...] = ()
    difference: Difference | None = None
    own_seconds: bool = False
    on_network: bool = False
    dataset: str = ""


def spread_over_seeds(
    runs: Sequence[Run], targets: Sequence[float] | None = None, stable: bool = False, baseline: str | None = None
) -> list[Spread]:
    """Return the results of each setting over its seeds, in the order of each setting's first run.

    `targets` and `stable` are as in `rounds_to_target`. Returns nothing if no setting has two finished seeds.
    """
    groups = group_runs(runs)
    found = find_baseline(groups, baseline) if baseline is not None else None
    if all(len(group.finished) < 2 for group in groups):
        if found is not None:
            raise InputError(_no_pairs(found))
        return []
    targets = choose_targets(groups, stable) if targets is None else targets
    rows = dict(zip(map(id, runs), rounds_to_target(runs, targets, stable=stable), strict=True))
    spreads = [_sum_up(group, [rows[id(run)] for run in group.finished]) for group in groups]
    return _compared(groups, spreads, found) if found is not None else spreads


def compare(group: Group, baseline: Group) -> Difference | None:
    """Return the difference of two settings' final values, uncorrected; None if they share no finished seed."""
    own, other = ({seed_of(run): run for run in each.finished} for each in (group, baseline))
    pairs = [(own[seed], other[seed]) for seed in own if seed in other]
    for column in COMPARED:
        values = [_final(one, column) - _final(two, column) for one, two in pairs]
        if values and np.isfinite(values).all():
            return Difference(column, baseline.label, estimate(values), paired_p(values))
    return None


def differences_in(panel: Panel, baseline: Group | None) -> list[Difference | None]:
    """Return each setting's difference to a baseline, with p values corrected for the panel's by Holm's method."""
    found = [compare(group, baseline) if baseline and group is not baseline else None for group in panel.groups]
    ps = holm([None if each is None else each.p for each in found])
    return [each and replace(each, p=p) for each, p in zip(found, ps, strict=True)]


def _compared(groups: Sequence[Group], spreads: Sequence[Spread], baseline: Group) -> list[Spread]:
    """Return the spreads with their differences to those of the same data set and panel and the baseline's label."""
    found = dict[int, Difference | None]()
    for panel in make_panels(groups):
        base = next((group for group in panel.groups if group.label == baseline.label), None)
        found |= zip(map(id, panel.groups), differences_in(panel, base), strict=True)
    if not any(each is not None and each.estimate.n > 1 for each in found.values()):
        raise InputError(_no_pairs(baseline))
    return [replace(one, difference=found[id(group)]) for one, group in zip(spreads, groups, strict=True)]


def _no_pairs(baseline: Group) -> str:
    return (
        f"baseline {baseline.label!r}: a paired test needs another setting with at least two finished seeds of this "
        f"one's ({', '.join(map(str, map(seed_of, baseline.finished))) or 'none'}); "
        "run more seeds, as by atoll sweep FILE --over seed=0..4"
    )


def _sum_up(group: Group, rows: Sequence[Row]) -> Spread:
    runs = group.finished
    own = dict.fromkeys(name for run in runs for name in run.rows if not is_built_in(name))
    last = {name: [_final(run, name) for run in runs] for name in (*USUAL, *own)}
    if np.isfinite(last["test_accuracy"]).any():
        del last["test_loss"]
    return Spread(
        panel=group.panel,
        label=group.label,
        seeds=tuple(map(seed_of, runs)),
        planned=group.planned,
        final={name: estimate(values) for name, values in last.items() if values and np.isfinite(values).all()},
        targets=tuple(_targets(rows)),
        own_seconds=any(run.own_seconds for run in runs),
        on_network=any(map(is_on_network, runs)),
        dataset=group.dataset,
    )


def choose_targets(groups: Sequence[Group], stable: bool) -> list[float]:
    """Choose the highest multiple of 5 % that all settings reach with all seeds, the highest any does, and one between.

    Those that a run meets at its first row, before training, are left out.
    """
    reaching: dict[float, int] = {}
    for target in (step / 20 for step in range(1, 21)):
        firsts = [
            [first_met(run.rows["test_accuracy"], target, stable=stable) for run in group.finished]
            for group in groups
            if group.finished
        ]
        if any(every := [first for group in firsts for first in group]) and 0 not in every:
            reaching[target] = sum(None not in group for group in firsts)
    if not any(reaching.values()):
        return []
    top = max(target for target, count in reaching.items() if count)
    low = max((target for target, count in reaching.items() if count == max(reaching.values())), default=top)
    return sorted({low, min(reaching, key=lambda target: abs(target - (low + top) / 2)), top})


def _targets(rows: Sequence[Row]) -> Iterator[TargetSpread]:
    for each in zip(*(row.targets for row in rows), strict=True):
        met = [reached for reached in each if reached.round is not None]
        known = {name: [getattr(reached, name) for reached in met] for name in COSTS} if len(met) == len(each) else {}
        costs = {name: estimate(values) for name, values in known.items() if None not in values}
        yield TargetSpread(each[0].target, rows[0].metric, len(met), costs)


def _final(run: Run, column: str) -> float:
    return float(run.rows[column][-1]) if column in run.rows else np.nan
