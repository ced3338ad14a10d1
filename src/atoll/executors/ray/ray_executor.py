"""Processes of a Ray cluster, on one machine or many: clients train side by side, to the same bits as one by one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClientTrainer, ClusterUpdate, Cohort, Executor
from atoll.executors.distributed import Distributed
from atoll.executors.packing import pack, pack_all, unpack
from atoll.executors.ray.cluster import Cluster, connect
from atoll.executors.ray.ray_worker import RemoteMeasuring, Training
from atoll.executors.ray.ray_workers import RayWorkers
from atoll.executors.weighted import Weighted
from atoll.local.batches import cut_rows, mean_by_client
from atoll.local.models import Model
from atoll.local.task import ClientUpdate
from atoll.local.trainer import plain_of
from atoll.local.weights import count_bytes
from atoll.support.arrays import Floats, Ids
from atoll.support.process import one_thread

PATIENCE_SECONDS = 60.0  # longer than a dead machine goes unnoticed

_MOST_CLIENTS = 8  # in one request
_MOST_BYTES = 8_000_000  # of their models, which are under way together
_REQUESTS_A_WORKER = 8  # at least, where there are so many clients, so that the workers end together


class Ray(Distributed):
    """Trains clients in single-threaded processes of a Ray cluster, which hold the clients' data and the model.

    Results are combined here, in the order of the clients, so the bits are those of `Serial` for any number of workers
    and machines with processors of one kind; with `by_cohort` they are that executor's. A start model is sent once to
    each machine. When a worker or its machine is killed, what it had is trained again elsewhere.
    """

    def __init__(
        self,
        trainer: ClientTrainer,
        workers: int | None = None,
        address: str | None = None,
        whole: bool = False,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Connect to a cluster, or start one on this machine.

        Args:
            trainer: trains a client; on the CPU.
            workers: processes at most; unset: one for each core of the cluster at this address.
            address: host:port of the cluster's head; unset: a cluster of its own with so many workers.
            whole: whether workers train whole cohorts with `Weighted`, where the combine rule is the mean of models.
            patience: seconds to wait for a worker when there is none left.

        Raises:
            InputError: Ray is not installed or in use, or the address does not answer, within 15 seconds.
            RunError: no cluster can be started.
        """
        self.trainer = trainer
        self.by_cohort: Executor | None = Weighted(plain) if whole and (plain := plain_of(trainer)) else None
        self._place = address, workers
        self._patience = patience
        self._cluster: Cluster | None = None
        self._workers: RayWorkers | None = None
        self._connect()

    def close(self) -> None:
        """End the workers and leave the cluster; it is connected to, or started, again if there is more to train."""
        if self._workers is not None:
            self._workers.close()
        if self._cluster is not None:
            self._cluster.close()
        self._workers, self._cluster = None, None

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update, in the order of the cohorts.

        Raises:
            RunError: as `Serial`; or workers were killed again and again at the same clients, none are left, or the
                cluster is gone.
        """
        whole = self.takes_whole(combine, screening)
        with self._working() as workers:
            return self.merge(cohorts, combine, self._train(workers, cohorts, whole), screening)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        rows = self.trainer.identity_rows(clients, round_)
        with self._working() as workers:
            sent = workers.cluster.put([pack(model) for model in models])
            parts = [(RemoteMeasuring(part), sent) for part in cut_rows(rows)]
            return mean_by_client(np.concatenate(list(workers.map(parts, ahead=len(parts)))), rows)

    def _train(self, workers: RayWorkers, cohorts: Sequence[Cohort], whole: bool) -> Iterator[ClientUpdate]:
        """Yield the update of each client, or of each cohort, in their order."""
        count = workers.cluster.workers
        clients = sum(len(cohort.clients) for cohort in cohorts)
        most = _MOST_BYTES // max(count_bytes(cohorts[0].start), 1) if cohorts else 1
        size = max(min(clients // (_REQUESTS_A_WORKER * count), _MOST_CLIENTS, most), 1)
        units = cohorts if whole else [part for cohort in cohorts for part in cut(cohort, size)]
        for answer in workers.map(self._send(workers.cluster, units, whole), ahead=4 * count + 2):
            for model, loss, states in answer:
                yield ClientUpdate(unpack(model), loss, next(map(unpack, states.values()), None))

    def _send(self, cluster: Cluster, units: Sequence[Cohort], whole: bool) -> Iterator[tuple[Training, Any]]:
        """Put the units' start models into the object store, one for all neighbours that have the same."""
        start, sent = None, None
        for unit in units:
            if sent is None or unit.start is not start:
                start, sent = unit.start, cluster.put([pack(unit.start)])
            yield Training(replace(unit, start={}, states={}), whole, pack_all(unit.states)), sent

    def _connect(self) -> RayWorkers:
        if self._workers is None:
            address, workers = self._place
            self._cluster = connect(address, workers)
            try:
                held = self._cluster.put((self.trainer, self.by_cohort is not None))
                self._workers = RayWorkers(self._cluster, held, self._patience)
            except BaseException:
                self.close()
                raise
        return self._workers

    @contextmanager
    def _working(self) -> Iterator[RayWorkers]:
        """Leave the cores to the workers; after any error, the user's interrupt too, they are gone."""
        workers = self._connect()
        with one_thread():
            try:
                yield workers
            except BaseException:
                workers.close()
                raise


def cut(cohort: Cohort, size: int) -> Iterator[Cohort]:
    """Yield parts of a cohort of at most so many clients."""
    for low in range(0, len(cohort.clients), size):
        part = slice(low, low + size)
        clients = cohort.clients[part]
        yield replace(cohort, clients=clients, weights=cohort.weights[part], states=cohort.states_of(clients))
