"""What result files show: each method's estimates within a budget, what a target cost it, and average ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atoll.benchmark.entrants import ALONE, REFERENCE
from atoll.benchmark.result_files import COSTS, MEASURED, Entry, ResultFile
from atoll.support.errors import InputError
from atoll.support.estimates import Estimate, estimate

COST_OF = dict(zip(("updates", "seconds", "bytes"), COSTS, strict=True))
"""The column that a budget limits."""


@dataclass(frozen=True)
class Standing:
    """A method on a suite, within one budget.

    Attributes:
        title: the method's.
        method: its name.
        values: of each measured column the estimate over seeds.
        scores: the mean score over clients by seed.
        costs: what the first row took that is as good as FedAvg at the end, mean over seeds, by column; empty: some
            seed never was.
        alone: the difference to training alone, paired by seed; None: unknown.
        spent: its costs at the end of the budget, by column.
    """

    title: str
    method: str
    values: Mapping[str, Estimate]
    scores: Mapping[int, float]
    costs: Mapping[str, float]
    alone: Estimate | None
    spent: Mapping[str, float]

    @property
    def is_worse_than_alone(self) -> bool:
        """Whether the whole interval of the difference is below 0."""
        return self.alone is not None and self.alone.high is not None and self.alone.high < 0


def stand(files: Sequence[ResultFile], budget: str) -> list[Standing]:
    """Return the methods of a suite that have runs, the best mean score first.

    Raises:
        InputError: FedAvg, whose costs are the budgets, has no runs.
    """
    by_name = {file.method: file for file in files}
    reference = by_name[REFERENCE].counted if REFERENCE in by_name else []
    if not reference:
        suite = files[0].suite if files else ""
        raise InputError(f"suite {suite}: has no runs of {REFERENCE}, whose costs are the budgets; add it to --methods")
    amounts = {name: float(np.mean([each.last(name) or 0.0 for each in reference])) for name in COSTS}
    goal = float(np.mean([each.last(MEASURED[0]) for each in reference]))
    scores = {file.method: _scores(file, COST_OF[budget], amounts[COST_OF[budget]]) for file in files}
    found = [
        Standing(
            title=file.title,
            method=file.method,
            values={
                name: estimate(known)
                for name in MEASURED
                if (known := _known(file.counted, name, COST_OF[budget], amounts[COST_OF[budget]]))
            },
            scores=scores[file.method],
            costs=_costs_to(file.counted, goal),
            alone=_paired(scores[file.method], scores.get(ALONE, {})) if file.method != ALONE else None,
            spent={
                name: float(np.mean([_at(each, name, COST_OF[budget], amounts[COST_OF[budget]]) for each in runs]))
                for name in COSTS
            },
        )
        for file in files
        if (runs := file.counted) and len(scores[file.method]) == len(runs)
    ]
    return sorted(found, key=lambda each: -each.values[MEASURED[0]].mean)


def average_ranks(suites: Sequence[Sequence[Standing]]) -> dict[str, float]:
    """Return the average rank, 1 the best, of each method that has results on all suites; ties share ranks."""
    from scipy.stats import rankdata

    common = [
        each.title for each in suites[0] if all(each.title in {one.title for one in other} for other in suites)
    ] if suites else []  # fmt: skip
    means = [{each.title: each.values[MEASURED[0]].mean for each in suite} for suite in suites]
    ranks = [rankdata([-own[title] for title in common]) for own in means]
    return dict(sorted(zip(common, np.mean(ranks, axis=0).tolist(), strict=True), key=lambda pair: pair[1]))


def critical_difference(methods: int, suites: int, alpha: float = 0.05) -> float:
    """Return by how much average ranks must differ to be apart, by Nemenyi's test (Demsar 2006, section 3.2.2).

    >>> round(critical_difference(5, 30), 2)
    1.11
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * suites))


def friedman_p(ranks: Sequence[float], suites: int) -> float:
    """Return the p value that all methods are alike, by Friedman's test in Iman and Davenport's form (ibid., eq. 9).

    >>> round(friedman_p([3.143, 2.000, 2.893, 1.964], 14), 2)
    0.03
    """
    from scipy.stats import f

    k = len(ranks)
    chi = 12 * suites / (k * (k + 1)) * (sum(rank**2 for rank in ranks) - k * (k + 1) ** 2 / 4)
    rest = suites * (k - 1) - chi
    return 0.0 if rest <= 0 else float(f.sf((suites - 1) * chi / rest, k - 1, (k - 1) * (suites - 1)))


def _at(entry: Entry, column: str, cost: str, amount: float) -> float:
    """Return a column's value when so much was spent, between two rows on the line between them; NaN if unknown."""
    rows = zip(entry.columns[cost], entry.columns.get(column, ()), strict=False)
    known = [(spent, value) for spent, value in rows if spent is not None and value is not None]
    return float(np.interp(amount, [x for x, _ in known], [y for _, y in known])) if known else math.nan


def _known(runs: Sequence[Entry], column: str, cost: str, amount: float) -> list[float]:
    """Return a column's value of each run; nothing unless all have one."""
    values = [_at(each, column, cost, amount) for each in runs]
    return values if values and np.isfinite(values).all() else []


def _scores(file: ResultFile, cost: str, amount: float) -> dict[int, float]:
    values = {each.seed: _at(each, MEASURED[0], cost, amount) for each in file.counted}
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def _paired(own: Mapping[int, float], other: Mapping[int, float]) -> Estimate | None:
    pairs = [own[seed] - other[seed] for seed in own if seed in other]
    return estimate(pairs) if pairs else None


def _costs_to(runs: Sequence[Entry], goal: float) -> dict[str, float]:
    firsts = [
        next((i for i, value in enumerate(each.columns[MEASURED[0]]) if value is not None and value >= goal), None)
        for each in runs
    ]
    if None in firsts:
        return {}
    rows = [[each.columns[name][i or 0] for each, i in zip(runs, firsts, strict=True)] for name in COSTS]
    return {name: float(np.mean([value or 0.0 for value in row])) for name, row in zip(COSTS, rows, strict=True)}
