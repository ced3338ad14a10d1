"""What result files show: each method's estimates within a budget, what a target cost it, and average ranks."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atoll.benchmark.contestants import REFERENCE
from atoll.benchmark.result_files import COSTS, MEASURED, SCORE, Entry, ResultFile
from atoll.support.errors import InputError
from atoll.support.estimates import Estimate, estimate

COST_OF = dict(zip(("updates", "seconds", "bytes"), COSTS, strict=True))
"""The column that a budget limits."""


@dataclass(frozen=True)
class Placing:
    """A method on a suite, within one budget.

    Attributes:
        title: the method's.
        values: of each measured column the estimate over seeds.
        scores: the mean score over clients by seed.
        spent: mean over seeds of each cost when the budget is used up.
        costs: the same at the first row as good as FedAvg with this seed at its end; empty: some seed had none.
    """

    title: str
    method: str
    values: Mapping[str, Estimate]
    scores: Mapping[int, float]
    spent: Mapping[str, float]
    costs: Mapping[str, float]

    @property
    def score(self) -> float:
        """The mean score over clients and seeds."""
        return self.values[SCORE].mean

    def is_below(self, other: "Placing") -> bool:
        """Return whether its score is lower, with the whole 95 % interval of the difference paired by seed."""
        pairs = [self.scores[seed] - other.scores[seed] for seed in self.scores if seed in other.scores]
        found = estimate(pairs) if pairs else None
        return found is not None and found.high is not None and found.high < 0


def stand(files: Collection[ResultFile], budget: str) -> list[Placing]:
    """Return the methods of a suite that have runs, the best mean score first."""
    if why := next((file.why_missing for file in files if file.method == REFERENCE), ""):
        raise InputError(f"--methods: {REFERENCE}, whose costs are the budgets, is in no table: {why}")
    able = [file for file in files if not file.why_missing]
    if not (reference := [each for file in able if file.method == REFERENCE for each in file.counted]):
        raise InputError(f"--methods: there are no runs of {REFERENCE}, whose costs are the budgets; add it")
    amount = float(np.mean([each.columns[COST_OF[budget]][-1] or 0.0 for each in reference]))
    goals = {each.seed: each.score or 0.0 for each in reference}
    return sorted((_place(file, COST_OF[budget], amount, goals) for file in able), key=lambda each: -each.score)


def _place(file: ResultFile, cost: str, amount: float, goals: Mapping[int, float]) -> Placing:
    at = {name: [_at(run, name, cost, amount) for run in file.counted] for name in (*MEASURED, *COSTS)}
    firsts = [_first(run, goals.get(run.seed, math.inf)) for run in file.counted]
    rows = list(zip(file.counted, firsts, strict=True))
    return Placing(
        title=file.title,
        method=file.method,
        values={name: estimate(at[name]) for name in MEASURED if np.isfinite(at[name]).all()},
        scores={run.seed: score for run, score in zip(file.counted, at[SCORE], strict=True)},
        spent={name: float(np.mean(at[name])) for name in COSTS},
        costs={} if None in firsts else {
            name: float(np.mean([run.columns[name][row or 0] or 0.0 for run, row in rows])) for name in COSTS
        },
    )  # fmt: skip


def _at(entry: Entry, column: str, cost: str, amount: float) -> float:
    """Return a column's value when so much was spent, between two rows on the line between them; NaN if unknown."""
    rows = zip(entry.columns[cost], entry.columns.get(column, ()), strict=False)
    known = [(spent, value) for spent, value in rows if spent is not None and value is not None]
    return float(np.interp(amount, [x for x, _ in known], [y for _, y in known])) if known else math.nan


def _first(entry: Entry, goal: float) -> int | None:
    """Return the first row with this score."""
    return next((row for row, score in enumerate(entry.columns[SCORE]) if score is not None and score >= goal), None)


def average_ranks(suites: Iterable[Sequence[Placing]]) -> dict[str, float]:
    """Return the average rank, 1 the best, of each method with results on all suites, two or more; ties share it."""
    from scipy.stats import rankdata

    scores = [{each.title: each.score for each in suite} for suite in suites]
    common = [title for title in scores[0] if all(title in own for own in scores)] if scores[1:] else []
    if len(common) < 2:
        return {}
    ranks = np.mean([rankdata([-own[title] for title in common]) for own in scores], axis=0)
    return dict(sorted(zip(common, ranks.tolist(), strict=True), key=lambda pair: pair[1]))


def critical_difference(methods: int, suites: int) -> float:
    """Return by how much average ranks must differ to be apart at 5 %, by Nemenyi's test (Demsar 2006, sec. 3.2.2)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * suites))


def friedman_p(ranks: Sequence[float], suites: int) -> float:
    """Return the p value that all methods are alike, by Friedman's test in Iman and Davenport's form (ibid.)."""
    from scipy.stats import f

    k = len(ranks)
    chi = 12 * suites / (k * (k + 1)) * (sum(rank**2 for rank in ranks) - k * (k + 1) ** 2 / 4)
    rest = suites * (k - 1) - chi
    return 0.0 if rest <= 0 else float(f.sf((suites - 1) * chi / rest, k - 1, (k - 1) * (suites - 1)))
