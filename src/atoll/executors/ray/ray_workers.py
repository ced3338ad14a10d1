"""Processes of a Ray cluster that answer requests in parallel, and are replaced if they or their machine die.

Ray's own retries are off: they are used up before it notices that a machine is dead, and wait forever if no core is
free. Lost requests are sent again from here.
"""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from atoll.executors.cores.cores_workers import Requests
from atoll.executors.ray.cluster import Cluster
from atoll.executors.ray.ray_worker import Worker
from atoll.support.environment import package_versions
from atoll.support.errors import RunError

_AT_A_TIME = 2  # requests per worker, so that it need not wait for the next while its answer is sent
_TICK_SECONDS = 1.0  # between checks of the clock and the cluster while no answer arrives
_PAUSE_SECONDS = 2.0  # before replacing a worker that failed to start
_FETCH_SECONDS = 60.0  # to fetch an answer from another machine, which may die meanwhile

# Spread over machines, so that few are lost with one and each has much of its machine's memory bandwidth.
_OPTIONS = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}


@dataclass(eq=False)
class _Handle:
    """A worker, as seen from the run's process.

    Attributes:
        actor: Ray's handle.
        starting: references to its pending answers to `Worker.greet` and `Worker.prepare`.
        under_way: numbers of its requests, with references to their answers; it answers them in this order.
    """

    actor: Any
    starting: deque[Any]
    under_way: deque[tuple[int, Any]] = field(default_factory=deque)

    @property
    def awaited(self) -> Any:
        """The reference to its next answer; None if it is idle."""
        if self.starting:
            return self.starting[0]
        return self.under_way[0][1] if self.under_way else None


class RayWorkers:
    """Workers on a cluster, as many as there is room for; the others start when there is more."""

    def __init__(self, cluster: Cluster, held: Any, patience: float) -> None:
        """Prepare to start workers.

        Args:
            cluster: the cluster to start them on, with their number.
            held: reference to the objects that they hold.
            patience: seconds to wait for a worker if there is none.
        """
        self.cluster = cluster
        self.patience = patience
        self._held = held
        self._make = cluster.ray.remote(**_OPTIONS, num_gpus=cluster.gpus)(Worker).remote
        self._handles: list[_Handle] = []
        self._failure = "none has started yet"
        self._start_after = 0.0
        self._sent: dict[int, tuple[Any, Any]] = {}

    def map(self, requests: Iterable[tuple[Any, Any]], ahead: int) -> Iterator[Any]:
        """Yield the answers to (request, reference to its models), in order.

        Request i is sent only after the answer to request i - ahead has been yielded and the next one requested.
        """
        pending, due = Requests(iter(requests)), 0
        if self._sent:  # the previous answers were not all requested
            self.close()
        self._sent.clear()
        last_seen = time.monotonic()
        while True:
            self._start()
            self._hand_out(pending, due + ahead)
            if due in pending.answers:
                error, content = pending.answers.pop(due)
                if error:
                    raise error(content)
                yield content
                due += 1
                last_seen = time.monotonic()
                continue
            if due == pending.handed_out and not pending.again:
                if not (taken := pending.take(due + 1)):
                    return
                pending.again.append(taken)
            self._collect(pending)
            if any(len(handle.starting) < 2 for handle in self._handles):  # a started one may fetch data for long
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > self.patience:
                raise RunError(
                    f"run.executor = 'ray': no workers are left, for {self.patience:g} s ({self._failure}); "
                    "go on with --resume when the cluster has cores"
                )

    def close(self) -> None:
        """End all workers at once, even if busy; new ones start if there is work again."""
        for handle in list(self._handles):
            self._end(handle)

    def _start(self) -> None:
        """Start workers until there are enough, counting those that are not yet ready."""
        if time.monotonic() < self._start_after:
            return
        while len(self._handles) < self.cluster.workers:
            actor = self._make()
            greeted = actor.greet.remote()
            prepared = actor.prepare.remote(sys.path, package_versions(), [self._held])
            self._handles.append(_Handle(actor, deque([greeted, prepared])))

    def _hand_out(self, pending: Requests, end: int) -> None:
        """Give requests numbered below `end` to the workers with the fewest."""
        while free := [each for each in self._handles if not each.starting and len(each.under_way) < _AT_A_TIME]:
            if not (taken := pending.take(end)):
                return
            number, (request, models) = taken
            handle = min(free, key=lambda each: len(each.under_way))
            self._sent[number] = request, models
            handle.under_way.append((number, handle.actor.answer.remote(request, models)))

    def _collect(self, pending: Requests) -> None:
        """Wait briefly for a worker's next answer, and take it."""
        awaited = {handle.awaited: handle for handle in self._handles if handle.awaited is not None}
        if not awaited:
            time.sleep(_TICK_SECONDS / 10)
            return
        ready, _ = self.cluster.ray.wait(list(awaited), num_returns=1, timeout=_TICK_SECONDS)
        self.cluster.require_alive()
        for reference in ready:
            self._take(awaited[reference], reference, pending)

    def _take(self, handle: _Handle, reference: Any, pending: Requests) -> None:
        ray = self.cluster.ray
        try:
            answer = ray.get(reference, timeout=_FETCH_SECONDS)
        except ray.exceptions.RayError as error:  # the process, its machine or the answer is lost
            self._failure = f"the last one ended with {type(error).__name__}"
            self._replace(handle, pending)
            return
        if not handle.starting:
            number, _ = handle.under_way.popleft()
            self._sent.pop(number)
            pending.answers[number] = answer
            return
        kind, content = answer
        if kind:
            raise kind(content)
        handle.starting.popleft()

    def _replace(self, handle: _Handle, pending: Requests) -> None:
        """Drop a worker and requeue its requests."""
        self._end(handle)
        if handle.starting:
            self._start_after = time.monotonic() + _PAUSE_SECONDS
        lost = [(number, self._sent[number]) for number, _ in handle.under_way]
        pending.requeue(lost, lambda sent: str(sent[0]), self._failure)

    def _end(self, handle: _Handle) -> None:
        self._handles.remove(handle)
        with suppress(Exception):  # it may be gone, with its machine or the cluster
            self.cluster.ray.kill(handle.actor, no_restart=True)
