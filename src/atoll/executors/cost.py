"""The units in which training is handed out, and their expected duration, one by one or in parallel."""

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort, Executor
from atoll.local.models import Model
from atoll.schedules.events import Event, Schedule
from atoll.support.errors import AtollError

# Overheads of `cores`, measured on two busy cores: sending one unit of work and receiving its result, copying each
# byte of its model there and back, forking a worker.
_HANDING_SECONDS = 0.0006
_COPYING_SECONDS = 3e-9
_FORKING_SECONDS = 0.05

_LONG_SECONDS = 0.1  # a unit that takes this long is timed only once
_GROUPS = 50  # the first groups of events that train together, from which `at_a_time` is estimated


@dataclass(frozen=True, eq=False)
class Units:
    """A schedule's training, split into units of work.

    Attributes:
        whole: whether a unit is a cohort, trained in one pass, or a single client.
        carried: whether a unit is handed out once for all intra-cluster rounds of its event.
    """

    schedule: Schedule
    whole: bool
    carried: bool = False

    @property
    def name(self) -> str:
        """The name of a unit."""
        return "cohort" if self.whole else "client"

    @cached_property
    def at_a_time(self) -> float:
        """The number of units that are ready at a time, averaged over the first groups of events."""
        counts: list[int] = []
        done = 0
        while len(counts) < _GROUPS and (events := self.schedule.ready(done)):
            counts.append(sum(self._count(event) for event in events))
            done += len(events)
        return float(np.mean(counts))

    def first(self, start: Model) -> Cohort:
        """Return a typical first unit: one client of the first event, or as many as its cohorts have on average."""
        event = self.schedule.events[0]
        count = max(1, len(event.cohort) // self._count(event)) if self.whole else 1
        weights = event.weights[:count]
        return Cohort(event.index, event.round, 0, 0, event.cohort[:count], weights, float(weights.sum()), start)

    def predict(self, seconds: float, model_bytes: int, workers: int) -> tuple[float, float]:
        """Return the expected seconds of all training, one unit after the other and with workers.

        One after the other: ``units x seconds``. With workers: ``(units x seconds + sending) / min(units at a time,
        workers) + forking``; sending a unit takes 0.6 ms, plus 3 ns for each byte of its model. `seconds` is the
        duration of a unit in one intra-cluster round.
        """
        events = self.schedule.events
        units = sum(self._count(event) * event.intra_rounds for event in events)
        handed_out = sum(map(self._count, events)) if self.carried else units
        handing = handed_out * (_HANDING_SECONDS + model_bytes * _COPYING_SECONDS)
        at_a_time = min(float(workers), self.at_a_time)
        return units * seconds, (units * seconds + handing) / at_a_time + workers * _FORKING_SECONDS

    def _count(self, event: Event) -> int:
        """Return the number of units in each intra-cluster round of an event."""
        if not self.whole:
            return len(event.cohort)
        clusters = self.schedule.clusters if event.clusters is None else len(np.unique(event.clusters))
        return min(clusters, len(event.cohort))


def time_unit(executor: Executor, unit: Cohort) -> float:
    """Return the seconds that a unit takes, the least of three; 0 if it fails, which the run will report."""
    least = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        try:
            executor.train([unit], average_models)
        except AtollError:
            return 0.0
        if (least := min(least, time.perf_counter() - began)) > _LONG_SECONDS:
            break
    return least
