"""Releases: how a combined result becomes a cluster's published model, for example with noise added."""

from collections.abc import Mapping
from typing import Protocol

from atoll.engine.cohorts import ClusterUpdate
from atoll.local.models import Model
from atoll.schedules.events import Event


class Release(Protocol):
    """Makes a cluster's published model of what its clients' results were combined to (`Stage.release`).

    With it the losses that clients report go nowhere, and clusters that clients choose themselves all publish in every
    event, so that nobody can tell from what is missing whom an event asked in vain.
    """

    def publish(
        self,
        event: Event,
        repeat: int,
        sent: Mapping[int, Model],
        combined: Mapping[int, ClusterUpdate],
        weights: Mapping[int, float],
    ) -> dict[int, Model]:
        """Return the model that each cluster publishes.

        Args:
            event: as it was planned.
            repeat: number of the intra-cluster round within it.
            sent: the model that each cluster's clients were sent.
            combined: what the combine rule made of their results, if any (`arrived`).
            weights: the weight of the results of each cluster that has any.
        """
        ...
