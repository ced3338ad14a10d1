"""The mean of a few values, with its confidence interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """The mean of n values, their sample standard deviation, and the mean's confidence interval.

    A single value has neither deviation nor interval.
    """

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None

    def limits(self, is_share: bool) -> tuple[float, float] | None:
        """Return the interval as it is written: that of shares, such as accuracies, ends at 0 and 1."""
        if self.low is None or self.high is None:
            return None
        if not is_share:
            return self.low, self.high
        return max(self.low, min(0.0, self.mean)), min(self.high, max(1.0, self.mean))


def t_point(n: int, confidence: float = 0.95) -> float:
    """Return how many standard errors of the mean of n values, at least 2, its two-sided interval reaches.

    >>> t_point(5)
    2.776...
    """
    from scipy import stats

    return float(stats.t.ppf((1 + confidence) / 2, n - 1))


def paired_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p value of Student's paired t test that the mean difference is 0.

    None where there are fewer than two differences, or all are equal but not 0, so that they have no deviation.

    >>> paired_p([1.0, 2.0, 3.0]), paired_p([0.0, 0.0]), paired_p([1.0])
    (0.0741..., 1.0, None)
    """
    if len(differences) < 2:
        return None
    if not any(differences):
        return 1.0
    found = estimate(differences)
    if not found.std or found.std < 1e-12 * abs(found.mean):
        return None
    from scipy import stats

    return float(2 * stats.t.sf(abs(found.mean) / (found.std / math.sqrt(found.n)), found.n - 1))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for several comparisons by Holm's step-down method; unknown ones stay None.

    >>> holm([0.04, 0.01, None, 0.03])
    [0.06, 0.03, None, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        corrected[place] = highest
    return corrected


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean of at least one value, with its Student's t interval.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(n=3, mean=2.0, std=1.0, low=-0.484..., high=4.484...)
    """
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return Estimate(1, mean, None, None, None)
    std = float(np.std(values, ddof=1)) if min(values) < max(values) else 0.0  # equal ones may differ from their mean
    half = t_point(n, confidence) * std / math.sqrt(n)
    return Estimate(n, mean, std, mean - half, mean + half)
