"""How fast runs recover when clients' data change (`[drift]`)."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from atoll.support.arrays import Floats

RECOVERY = "recovery_rounds"
_SLACK = {"test_accuracy": 0.01, "test_loss": -0.05}  # one point; 5 % of the loss before


def changes_of(config: Mapping[str, Any]) -> list[int]:
    """Return the rounds at which clients' data change in a run of these settings."""
    drift = config.get("drift")
    rounds = drift.get("rounds") if isinstance(drift, Mapping) and drift.get("kind", "none") != "none" else []
    return [each for each in rounds if type(each) is int and 0 <= each < 2**53] if isinstance(rounds, list) else []


def with_recovery(rows: Mapping[str, Floats], config: Mapping[str, Any]) -> dict[str, Floats]:
    """Return the columns of a run, with `recovery_rounds` if clients' data change in it.

    It is the mean, over the changes so far, of the rounds until the test accuracy is back within a point of that in the
    last row before (without accuracies, the test loss within 5 %), or else until the next change or the row itself.
    """
    column = next((name for name in _SLACK if np.isfinite(rows[name]).any()), "test_loss")
    rounds, values, slack = rows["round"], rows[column], _SLACK[column]
    measured = np.isfinite(values)
    firsts = [each for each in changes_of(config) if (rounds[measured] <= each).any()]
    if not firsts:
        return dict(rows)
    taken = np.zeros_like(rounds)
    for first, end in pairwise([*firsts, np.inf]):
        before = values[(rounds <= first) & measured][-1]
        met = values >= before - slack if slack > 0 else values <= before * (1 - slack)
        back = rounds[(rounds > first) & met]
        taken += np.clip(rounds, first, min(end, back[0] if len(back) else np.inf)) - first
    begun = (rounds[:, None] > firsts).sum(axis=1)
    return {**rows, RECOVERY: np.divide(taken, begun, out=np.full_like(taken, np.nan), where=begun > 0)}
