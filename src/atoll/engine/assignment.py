"""Cluster assignment: how the clients of a cohort find their cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atoll.engine.cohorts import Executor
from atoll.local.models import Model
from atoll.schedules.events import Event
from atoll.support.arrays import Floats, Ids, least
from atoll.support.errors import InputError

NOT_CHOSEN = -2


class Assignment(Protocol):
    """Returns the cluster of each cohort client, int64 [cohort], from the clusters' start models.

    -1: the client did not answer, and is left out; `NOT_CHOSEN`: it answered, but does not train.
    """

    def __call__(self, event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
        """Return the clusters."""


def as_scheduled(event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
    """Return the clusters that the schedule names."""
    if event.clusters is None:
        raise InputError(
            f"event {event.index}: the schedule names no clusters, so clients must find them by least loss"
        )
    return event.clusters


@dataclass(frozen=True, eq=False)
class ByLabel:
    """Return each client's current cluster (`State.labels`), if the schedule names none."""

    labels: Ids

    def __call__(self, event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
        """Return the clusters."""
        return self.labels[event.cohort] if event.clusters is None else event.clusters


def least_loss(event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
    """Return the cluster whose model has the least mean loss on each client's data; the lowest on ties (IFCA).

    A client whose losses are all NaN did not report any (`Executor`), and is left out.
    """
    return least_or_none(executor.losses(starts, event.cohort, event.round))


def least_or_none(losses: Floats) -> Ids:
    """Return the column with the least loss in each row, -1 where all are NaN, [rows]."""
    return np.where(np.isnan(losses).all(axis=1), -1, least(losses))


@dataclass(frozen=True, eq=False)
class HighestLoss:
    """Lets only the clients of a cohort train whose data have the highest mean loss; the first on ties.

    A client whose loss is NaN did not report any (`Executor`). `sizes` says how many train, of each event.
    """

    sizes: Ids

    def __call__(self, event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
        """Return cluster 0 for clients that train."""
        losses = executor.losses(starts, event.cohort, event.round)[:, 0]
        clusters = np.full(len(losses), NOT_CHOSEN)
        clusters[np.argsort(-losses, kind="stable")[: self.sizes[event.index]]] = 0  # NaN is sorted last
        return np.where(np.isnan(losses), -1, clusters)
