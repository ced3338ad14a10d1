"""Identity: how the clients of a cohort find their cluster."""

from collections.abc import Sequence
from typing import Protocol

from atoll.errors import InputError
from atoll.local import Model
from atoll.schedules import Event, Ids


class Identity(Protocol):
    """Returns the cluster of each cohort client, int64 [cohort], from the clusters' start models."""

    def __call__(self, event: Event, starts: Sequence[Model]) -> Ids:
        """Return the clusters."""
        ...


def fixed(event: Event, starts: Sequence[Model]) -> Ids:
    """Take the clusters that the schedule names."""
    if event.clusters is None:
        raise InputError(
            f"event {event.index}: the schedule names no clusters, so clients must find them by least loss"
        )
    return event.clusters
