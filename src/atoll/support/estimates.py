"""The mean of a few values, with its confidence interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

Band: TypeAlias = Literal["interval", "spread"]
"""The mean's 95 % t interval over seeds, or one sample standard deviation over seeds to each side of the mean."""


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

    def half(self, band: Band = "interval") -> float | None:
        """Return what is written after ±, half of the interval or the standard deviation; None for a single value."""
        return self.std if band == "spread" or self.high is None else self.high - self.mean


def t_point(n: int, confidence: float = 0.95) -> float:
    """Return how many standard errors of the mean of n values, at least 2, its two-sided interval reaches."""
    from scipy.special import stdtrit  # scipy.stats, which gives the same, takes a second to load

    return float(stdtrit(n - 1, (1 + confidence) / 2))


def paired_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p value of Student's paired t test that the mean difference is 0.

    None where there are fewer than two differences, or all are equal but not 0, so that they have no deviation.
    """
    if len(differences) < 2:
        return None
    if not any(differences):
        return 1.0
    found = estimate(differences)
    if not found.std or found.std < 1e-12 * abs(found.mean):
        return None
    from scipy.special import stdtr

    return float(2 * stdtr(found.n - 1, -abs(found.mean) / (found.std / math.sqrt(found.n))))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for several comparisons by Holm's step-down method; unknown ones stay None."""
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        corrected[place] = highest
    return corrected


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean of at least one value, with its Student's t interval."""
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return Estimate(1, mean, None, None, None)
    std = float(np.std(values, ddof=1)) if min(values) < max(values) else 0.0  # equal ones may differ from their mean
    half = t_point(n, confidence) * std / math.sqrt(n)
    return Estimate(n, mean, std, mean - half, mean + half)


def estimate_share(values: Sequence[float]) -> Estimate:
    """Return the mean of at least one value from 0 to 1, such as an accuracy, with a 95 % interval inside 0 to 1.

    Values outside, such as those of a custom metric that is no share, have the interval of `estimate`.

    This is Wilson's score interval for the number of draws that would give the mean its standard error, with Student's
    t quantile in place of the normal one. Well inside 0 to 1 it is close to the interval of `estimate`.
    """
    found = estimate(values)
    if not found.std or min(values) < 0 or max(values) > 1:  # without a deviation: one value, or all equal
        return found
    error = found.std / math.sqrt(found.n)
    draws = found.mean * (1 - found.mean) / error**2
    point = t_point(found.n)
    shrink = 1 / (1 + point**2 / draws)
    middle = shrink * (found.mean + point**2 / (2 * draws))
    half = shrink * point * math.hypot(error, point / (2 * draws))
    return replace(found, low=max(0.0, middle - half), high=min(1.0, middle + half))
