"""Units of work that training is handed out in, and how long they are expected to take, side by side or not."""

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort, Executor
from atoll.local.models import Model
from atoll.schedules.events import Event, Schedule
from atoll.support.errors import AtollError

# What `cores` takes besides training, measured on two busy cores: to hand out one unit of work and take back its
# result, to copy each byte of its model there and back, to fork a worker.
_HANDING_SECONDS = 0.0006
_COPYING_SECONDS = 3e-9
_FORKING_SECONDS = 0.05

_LONG_SECONDS = 0.1  # training that takes so long is timed only once
_GROUPS = 50  # of events that train together, from the start, which show how much can be done at a time


@dataclass(frozen=True, eq=False)
class Units:
    """A schedule's training in units of work.

    Attributes:
        schedule: what is trained.
        whole: whether a unit is a cohort, in one pass; else it is a client.
        carried: whether a unit is handed out once for all intra-cluster rounds of its event.
    """

    schedule: Schedule
    whole: bool
    carried: bool = False

    @property
    def name(self) -> str:
        """What a unit is."""
        return "cohort" if self.whole else "client"

    @cached_property
    def at_a_time(self) -> float:
        """How many units are ready at a time, on average over the first groups of events."""
        counts: list[int] = []
        done = 0
        while len(counts) < _GROUPS and (events := self.schedule.ready(done)):
            counts.append(sum(self._count(event) for event in events))
            done += len(events)
        return float(np.mean(counts))

    def first(self, start: Model) -> Cohort:
        """Return the first client of the first event, or as many as its cohorts have on average."""
        event = self.schedule.events[0]
        count = max(1, len(event.cohort) // self._count(event)) if self.whole else 1
        weights = event.weights[:count]
        return Cohort(event.index, event.round, 0, 0, event.cohort[:count], weights, float(weights.sum()), start)

    def predict(self, seconds: float, model_bytes: int, workers: int) -> tuple[float, float]:
        """Return the seconds that all training is expected to take, one unit after the other and with workers.

        One after the other: ``units x seconds``. With workers: ``(units x seconds + handing out) / (units at a time,
        at most the workers) + forking``; handing out a unit takes 0.6 ms, and 3 ns for each byte of its model.

        Args:
            seconds: what a unit takes in one intra-cluster round.
            model_bytes: bytes of a model that is handed out.
            workers: processes, a core each.
        """
        events = self.schedule.events
        units = sum(self._count(event) * event.intra_rounds for event in events)
        handed_out = sum(map(self._count, events)) if self.carried else units
        handing = handed_out * (_HANDING_SECONDS + model_bytes * _COPYING_SECONDS)
        at_a_time = min(float(workers), self.at_a_time)
        return units * seconds, (units * seconds + handing) / at_a_time + workers * _FORKING_SECONDS

    def _count(self, event: Event) -> int:
        """Return how many units an event is in each of its intra-cluster rounds."""
        if not self.whole:
            return len(event.cohort)
        clusters = self.schedule.clusters if event.clusters is None else len(np.unique(event.clusters))
        return min(clusters, len(event.cohort))


def time_unit(executor: Executor, unit: Cohort) -> float:
    """Return the seconds that a unit of work takes, the least of three; 0 if it fails, which the run will report."""
    least = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        try:
            executor.train([unit], average_models)
        except AtollError:
            return 0.0
        least = min(least, time.perf_counter() - began)
        if least > _LONG_SECONDS:
            break
    return least
