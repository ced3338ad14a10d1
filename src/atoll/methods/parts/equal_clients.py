"""Equal client weights, and a mean that also tells the server how many clients answered."""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from atoll.aggregation.mean import Weighted, mean
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.schedules.events import Event
from atoll.schedules.packed import pack
from atoll.schedules.timeline import Work

SHARE = "@share"

Worked = TypeVar("Worked", Event, Work)


def weigh_equally(method: Method) -> Method:
    """Return the method with weight 1 for every client; clusters' weights in merges are unchanged."""
    schedule = replace(method.schedule, events=pack(map(_equally, method.schedule.events)))
    if method.arrivals is None:
        return replace(method, schedule=schedule)
    made = {id(phase): phase for phase in method.arrivals.in_force}  # events share phases
    equal = {
        key: replace(phase, works={cluster: _equally(work) for cluster, work in phase.works.items()})
        for key, phase in made.items()
    }
    in_force = [equal[id(phase)] for phase in method.arrivals.in_force]
    return replace(method, schedule=schedule, arrivals=replace(method.arrivals, in_force=in_force))


def _equally(work: Worked) -> Worked:
    return replace(work, weights=np.ones(len(work.cohort)))


@dataclass(frozen=True)
class MeanAndShare:
    """The combine rule that returns the mean of the models, and the share of all clients in it as `SHARE`.

    The server rule removes the share from the model with `take_share`.
    """

    clients: int

    def __call__(self, models: Weighted, start: Model, cohort_weight: float) -> Model:
        """Return the mean and the share."""
        import torch

        answered = 0

        def counted() -> Weighted:
            nonlocal answered
            for pair in models:
                answered += 1
                yield pair

        return mean(counted()) | {SHARE: torch.tensor(answered / self.clients, dtype=torch.float64)}


def take_share(merged: Model) -> tuple[Model, float]:
    """Return the mean and the share of all clients in it, 0 if nobody answered."""
    share = float(merged[SHARE]) if SHARE in merged else 0.0
    return {name: tensor for name, tensor in merged.items() if name != SHARE}, share
