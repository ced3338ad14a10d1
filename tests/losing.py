"""An executor whose clients may fail to answer."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Condition

import numpy as np

from atoll import RunError
from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClusterUpdate, Cohort, Executor
from atoll.local.models import Model
from atoll.support.arrays import Floats, Ids

Lose = Callable[[Cohort], Ids]
"""Returns the clients of a cohort that do not answer."""


def nobody(cohort: Cohort) -> Ids:
    return cohort.clients[:0]


def some(rng: np.random.Generator, share: float) -> Lose:
    """Lose each client with this probability, anew each time it is asked."""
    return lambda cohort: cohort.clients[rng.random(len(cohort.clients)) < share]


class Losing:
    """ClientTrainer on another executor, for one caller at a time, and loses the clients that it is told to.

    Those who answer are averaged with their own total weight, as on a fleet. In turns, a work waits until
    `let` was called with its number, so that it is known which one ends next.
    """

    def __init__(self, inner: Executor, lose: Lose = nobody, in_turns: bool = False) -> None:
        self.inner = inner
        self.bits = inner.bits
        self.lose = lose
        self.seconds = 0.0
        self._changed = Condition()
        self._allowed = 0 if in_turns else math.inf
        self._closed = False

    def let(self, number: int) -> None:
        with self._changed:
            self._allowed = number
            self._changed.notify_all()

    def clock(self) -> float:
        """A second a call, whoever makes it."""
        return self.seconds

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        with self._changed:
            assert self._changed.wait_for(lambda: self._closed or cohorts[0].event <= self._allowed, timeout=60)
            if self._closed:
                raise RunError("closed")
            self.seconds += 1
            there = [~np.isin(cohort.clients, self.lose(cohort)) for cohort in cohorts]
            total: Counter[int] = Counter()
            for cohort, answered in zip(cohorts, there, strict=True):
                total[cohort.event] += int(cohort.weights[answered].sum())
            wholes = [replace(cohort, event_weight=float(total[cohort.event])) for cohort in cohorts]
            return [self._average(*each, combine, screening) for each in zip(wholes, there, strict=True)]

    def carries_through(self, combine: Combine) -> bool:
        return False

    def _average(
        self, cohort: Cohort, answered: np.ndarray, combine: Combine, screening: Screening | None
    ) -> ClusterUpdate:
        refused = Counter({"late": int((~answered).sum())})
        if not answered.any():
            return ClusterUpdate(cohort.start, math.nan, 0.0, refused, answered)
        own = replace(cohort, clients=cohort.clients[answered], weights=cohort.weights[answered])
        (average,) = self.inner.train([own], combine, screening)
        share = float(own.weights.sum() / cohort.weights.sum())
        return replace(average, arrived=share, refused=+refused, answered=answered)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        with self._changed:
            losses = self.inner.losses(models, clients, round_)
            asked = Cohort(-1, round_, 0, 0, clients, np.ones(len(clients)), 1.0, models[0])
            losses[np.isin(clients, self.lose(asked))] = np.nan
            return losses

    def close(self) -> None:
        """End what waits for its turn; nothing trains from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
