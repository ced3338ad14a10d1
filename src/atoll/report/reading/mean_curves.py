"""The mean of a setting's curves over seeds, with a band around it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.report.reading.runs import Run
from atoll.support.arrays import Floats
from atoll.support.estimates import Band, t_point


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """A curve over seeds: horizontal values, means, and the band's edges, all [points]; without a band, equal means."""

    x: Floats
    y: Floats
    low: Floats
    high: Floats

    @property
    def has_band(self) -> bool:
        """Whether the band is wider than its line anywhere."""
        return bool((self.high - self.low > 1e-9 * np.abs(self.y)).any())

    @property
    def limits(self) -> Floats:
        """Values that an axis should span: the means, and a band as far as it does not flatten them, [values]."""
        if not self.y.size:
            return self.y
        room = max(float(np.ptp(self.y)), float(np.median(self.high - self.low)))
        low, high = self.y.min() - room, self.y.max() + room
        return np.concatenate([self.y, np.clip(self.low, low, high), np.clip(self.high, low, high)])


def mean_curve(runs: Sequence[Run], x: str, y: str, band: Band = "interval") -> MeanCurve:
    """Return the mean of a column over runs of one setting against the mean of another.

    Means are taken at the rounds at which all runs have both columns. The band of at least two runs is the mean's 95 %
    t interval, or one sample standard deviation to each side; it ends at 0 where no value is negative and, for an
    accuracy, at 1.
    """
    own = [_points(run, x, y) for run in runs]
    if len(own) == 1:
        return MeanCurve(own[0][1], own[0][2], own[0][2], own[0][2])
    shared = sorted(set.intersection(*({*rounds.tolist()} for rounds, _, _ in own)))
    at = [{number: place for place, number in enumerate(rounds.tolist())} for rounds, _, _ in own]
    picked = [[places[number] for number in shared] for places in at]
    across = np.array([xs[places] for (_, xs, _), places in zip(own, picked, strict=True)])
    values = np.array([ys[places] for (_, _, ys), places in zip(own, picked, strict=True)])
    mean, half = values.mean(axis=0), values.std(axis=0, ddof=1)
    if band == "interval":
        half = half * t_point(len(runs)) / math.sqrt(len(runs))
    low, high = mean - half, mean + half
    if (values >= 0).all():
        low = np.maximum(low, 0.0)
    if y.endswith("accuracy"):
        high = np.minimum(high, 1.0)
    return MeanCurve(across.mean(axis=0), mean, low, high)


def _points(run: Run, x: str, y: str) -> tuple[Floats, Floats, Floats]:
    """Return rounds, and both columns, of the rows that have both."""
    xs, ys = run.rows[x], run.rows.get(y, np.full(len(run.rows[x]), np.nan))
    known = np.isfinite(xs) & np.isfinite(ys)
    return run.rows["round"][known], xs[known], ys[known]
