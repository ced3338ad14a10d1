"""Releases: how a combined result becomes a cluster's published model, for example with noise added."""

from collections.abc import Mapping
from typing import Protocol

from atoll.engine.cohorts import ClusterUpdate
from atoll.local.models import Model
from atoll.schedules.events import Event


class Release(Protocol):
    """Turns a cluster's combined result into its published model (`Stage.release`).

    Losses that clients report are then dropped. If clients choose their clusters, all clusters publish in every event,
    so that a missing one does not reveal which clients failed to answer.
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
            event: the planned event.
            repeat: number of the intra-cluster round within it.
            sent: the model that each cluster's clients were sent.
            combined: their combined results, if any (`arrived`).
            weights: the weight of the results of each cluster that has any.
        """
