"""When clusters that wait for the slowest finished their own work, for plots of the schedule."""

import math
from bisect import bisect_right

import numpy as np

from atoll.experiment.experiment import Experiment
from atoll.methods.papers.hierarchical import SYNCHRONOUS
from atoll.network.completion import event_seconds
from atoll.settings.choices import method_needs
from atoll.support.arrays import Floats


def work_ends(experiment: Experiment) -> Floats | None:
    """Return when each active cluster of each event finished its own work, in order, [pieces of work].

    None if no cluster waits: each event ends with its work.
    """
    seconds = work_seconds(experiment)
    if seconds is None:
        return None
    events = experiment.method.schedule.events
    begins = [phase.round for phase in experiment.plan.phases]
    return np.array(
        [
            min(began + seconds[bisect_right(begins, event.round) - 1][cluster], event.seconds)
            for event in events
            for cluster, began in zip(event.active, event.began, strict=True)
        ]
    )


def work_seconds(experiment: Experiment) -> list[Floats] | None:
    """Return the duration of each cluster's work in one event, [phases][clusters]; None if no cluster waits.

    None also if speeds change, so that no two events are alike.
    """
    method = experiment.settings.method
    if (
        not method_needs(experiment.settings, "phases")
        or experiment.schedule is not None
        or experiment.plan.clock.pace is not None
        or (pattern := method.get("pattern")) not in SYNCHRONOUS
    ):
        return None
    deadline = experiment.settings.faults.deadline_seconds
    limit = math.inf if deadline is None else deadline
    return [
        event_seconds(phase.network, phase.clustering.labels, pattern, method.get("intra_rounds", 1), limit)
        for phase in experiment.plan.phases
    ]
