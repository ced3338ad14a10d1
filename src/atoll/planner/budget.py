"""What a plan is made for: time, bytes, and a target accuracy."""

import math
from collections.abc import Container
from dataclasses import dataclass

from atoll.runs.columns import rises
from atoll.support.errors import InputError


@dataclass(frozen=True)
class PlanBudget:
    """The budget and the goal.

    Attributes:
        seconds: of virtual time; None: as in the experiment's own settings.
        size: bytes that all clients and aggregators send and receive; None: unlimited.
        target: value of `metric` to reach as early as possible; None: the best `metric` at the end is the goal.
        metric: a column of rows; None: test accuracy of the models that clients receive (see `column_of`).
        is_regression: whether there are no classes, so that the goal is the least test loss.
    """

    seconds: float | None = None
    size: float | None = None
    target: float | None = None
    metric: str | None = None
    is_regression: bool = False

    def __post_init__(self) -> None:
        """Refuse an invalid target."""
        share = self.metric.endswith("accuracy") if self.metric else not self.is_regression
        if self.target is not None and not (0 < self.target <= 1 if share else 0 < self.target < math.inf):
            raise InputError(f"--target {self.target:g}: must be greater than 0" + " and at most 1" * share)

    def column_of(self, columns: Container[str] = ()) -> str:
        """Return the column that a plan is judged by, of the `columns` that its rows have.

        Without a server clients receive their aggregators' models, so it is these models' mean accuracy: the mean
        model's can be much higher than that of any client's model.
        """
        accuracy = "mean_cluster_accuracy" if "mean_cluster_accuracy" in columns else "test_accuracy"
        return self.metric or ("test_loss" if self.is_regression else accuracy)

    @property
    def falls(self) -> bool:
        """Whether less is better."""
        return self.is_regression if self.metric is None else not rises(self.metric)
