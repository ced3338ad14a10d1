"""Parallel training on a Ray cluster of one or many machines, bit-identical to training one by one."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClientTrainer, ClusterUpdate, Cohort, Executor
from atoll.engine.combining import PartialSum
from atoll.executors.distributed import Distributed, Measuring, Training, TrainingUnit, ending_on_error, update_of
from atoll.executors.packing import pack, unpack
from atoll.executors.ray.cluster import Cluster, connect
from atoll.executors.ray.ray_workers import RayWorkers
from atoll.executors.weighted import Weighted
from atoll.local.batches import cut_rows, mean_by_client
from atoll.local.models import Model
from atoll.local.task import ClientUpdate
from atoll.local.trainer import plain_of
from atoll.local.weights import count_bytes
from atoll.support.arrays import Floats, Ids

PATIENCE_SECONDS = 60.0  # longer than Ray takes to notice a dead machine

_MOST_CLIENTS = 8  # in one request
_MOST_BYTES = 8_000_000  # of models in one request
_REQUESTS_A_WORKER = 8  # at least, if there are enough clients, so that the workers finish together


class Ray(Distributed):
    """Trains clients in single-threaded processes of a Ray cluster, which hold the clients' data and the model.

    Results are combined here in the order of the clients, or summed in the workers by subtrees of the same `SumTree`,
    so they are bit-identical to those of `Serial`, or of `by_cohort`, for any number of workers and machines with the
    same kind of processor, or GPU. Each start model is sent once to each machine. If a worker or its machine dies, its
    clients are trained again elsewhere.
    """

    finest = 6  # a network is slow

    def __init__(
        self,
        trainer: ClientTrainer,
        workers: int | None = None,
        address: str | None = None,
        whole: bool = False,
        on_gpus: bool = False,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Connect to a cluster, or start one on this machine.

        Args:
            trainer: trains a client.
            workers: maximum number of processes; None: one for each core, or GPU, of the cluster at this address.
            address: host:port of the cluster's head; None: start a cluster with this many workers.
            whole: whether workers train whole cohorts with `Weighted` if the combine rule is the mean of models.
            on_gpus: whether workers have a GPU each, or, if they are more, equal shares of one; the trainer is on one.
            patience: seconds to wait for a worker if none is left.

        Raises:
            InputError: Ray is not installed or in use, or the address does not answer, within 15 seconds.
            RunError: no cluster can be started.
        """
        self.trainer = trainer
        self.by_cohort: Executor | None = Weighted(plain) if whole and (plain := plain_of(trainer)) else None
        self._place = address, workers, on_gpus
        self._patience = patience
        self._cluster: Cluster | None = None
        self._workers: RayWorkers | None = None
        self._connect()

    def close(self) -> None:
        """End the workers and leave the cluster; reconnect or restart if there is more to train."""
        if self._workers is not None:
            self._workers.close()
        if self._cluster is not None:
            self._cluster.close()
        self._workers, self._cluster = None, None

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update, in the order of the cohorts."""
        workers = self._connect()
        with ending_on_error(workers.close):
            count = workers.cluster.workers
            units = self.units(cohorts, combine, screening, count, self._together(cohorts, count))
            return self.merge(cohorts, combine, self._train(workers, units), screening)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        rows = self.trainer.identity_rows(clients, round_)
        workers = self._connect()
        with ending_on_error(workers.close):
            sent = workers.cluster.put([pack(model) for model in models])
            parts = [(Measuring(part), sent) for part in cut_rows(rows)]
            return mean_by_client(np.concatenate(list(workers.map(parts, ahead=len(parts)))), rows)

    def _together(self, cohorts: Sequence[Cohort], workers: int) -> int:
        """Return the most clients in one request, of those whose models are sent."""
        clients = sum(len(cohort.clients) for cohort in cohorts)
        most = _MOST_BYTES // max(count_bytes(cohorts[0].start), 1) if cohorts else 1
        return max(min(clients // (_REQUESTS_A_WORKER * workers), _MOST_CLIENTS, most), 1)

    def _train(self, workers: RayWorkers, units: Iterable[TrainingUnit]) -> Iterator[ClientUpdate | PartialSum]:
        """Yield the units' updates, in order."""
        for answer in workers.map(self._send(workers.cluster, units), ahead=4 * workers.cluster.workers + 2):
            for model, outcome, states in answer:
                yield update_of(outcome, unpack(model), states)

    def _send(self, cluster: Cluster, units: Iterable[TrainingUnit]) -> Iterator[tuple[Training, Any]]:
        """Put the units' start models into the object store; consecutive units with the same start share one copy."""
        start, sent = None, None
        for unit in units:
            if sent is None or unit.cohort.start is not start:
                start, sent = unit.cohort.start, cluster.put([pack(unit.cohort.start)])
            yield Training(*unit.packed()), sent

    def _connect(self) -> RayWorkers:
        if self._workers is None:
            self._cluster = connect(*self._place)
            try:
                held = self._cluster.put((self.trainer, self.by_cohort is not None))
                self._workers = RayWorkers(self._cluster, held, self._patience)
            except BaseException:
                self.close()
                raise
        return self._workers
