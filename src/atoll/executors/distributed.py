"""The common part of executors with worker processes: what a worker trains at a time, and which bits that gives."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Self

from atoll.aggregation.mean import Combine, is_weighted_mean
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClusterUpdate, Cohort, Executor
from atoll.engine.combining import combine_updates
from atoll.local.task import ClientUpdate


class Distributed(ABC):
    """Workers train single clients, or whole cohorts if there is a `by_cohort`."""

    by_cohort: Executor | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the workers; they restart if there is more to train."""

    @property
    def bits(self) -> str:
        """The name of the executor to which results are bit-identical."""
        return "serial" if self.by_cohort is None else self.by_cohort.bits

    def carries_through(self, combine: Combine) -> bool:
        """Return whether workers take cohorts through several intra-cluster rounds, as `by_cohort` does."""
        return self.by_cohort is not None and self.by_cohort.carries_through(combine)

    def takes_whole(self, combine: Combine, screening: Screening | None) -> bool:
        """Return whether a worker trains a whole cohort, which it cannot if single results are needed."""
        return self.by_cohort is not None and screening is None and is_weighted_mean(combine)

    def merge(
        self, cohorts: Sequence[Cohort], combine: Combine, updates: Iterable[ClientUpdate], screening: Screening | None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update from the workers' results: whole cohorts, or their clients in order."""
        if self.takes_whole(combine, screening):
            return [ClusterUpdate(update.model, update.loss) for update in updates]
        return combine_updates(cohorts, combine, updates, screening)
