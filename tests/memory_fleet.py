"""A fleet in this process: nodes are threads, and all that passes between them and the server is bytes."""

import time
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, Queue
from threading import Condition, Thread
from typing import Any

from atoll.fleet.agreed.transport import Failure, Properties
from atoll.fleet.node.handlers import answer
from atoll.fleet.node.node import Side
from atoll.fleet.node.store import Store
from tests.memory_store import MemoryStore

Fault = Callable[[str, bytes, Callable[[], bytes]], bytes | Failure | None]
"""Task, payload, what the node would answer -> what comes instead; None: nothing ever."""


class MemoryFleet:
    """Nodes that are threads of this process.

    Attributes:
        sites: each node's side of the experiment, by the node's name.
        stores: what each node keeps.
        faults: what goes wrong at a node; may be changed at any time.
        gone: names of nodes that are not there; may be changed at any time.
    """

    def __init__(
        self,
        sites: Mapping[str, Side],
        faults: Mapping[str, Fault] | None = None,
        stores: Mapping[str, Store] | None = None,
        public_keys: Mapping[str, str] | None = None,
    ) -> None:
        """Use these nodes, and know them by these public keys, if by any."""
        self.sites: dict[str, Any] = dict(sites)  # tests change nodes
        self.stores: dict[str, Store] = {name: MemoryStore() for name in sites} | dict(stores or {})
        self.faults = dict(faults or {})
        self.keys = {name: {"public_key": line} for name, line in (public_keys or {}).items()}
        self.gone: set[str] = set()
        self._is_closed, self._at_work, self._idle = False, 0, Condition()

    def nodes(self) -> dict[str, Properties]:
        """Return the nodes that are there now, by name."""
        return {
            name: {"clients": ",".join(map(str, site.clients)), **self.keys.get(name, {})}
            for name, site in self.sites.items()
            if name not in self.gone
        }

    def allow(self, most: int) -> None:
        """Take any reply: nothing is kept of it here, and whoever asked checks its length. A run begins so."""
        self._is_closed = False

    def call(
        self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Have nodes do a task, each in a thread; yield one reply or failure per node, as they come."""
        until = time.monotonic() + timeout
        came: Queue[tuple[str, bytes | Failure]] = Queue()
        for name, head in heads.items():
            Thread(target=self._carry_out, args=(name, task, head + payload, came), daemon=True, name=name).start()
        waiting = list(heads)
        while waiting:
            try:
                name, content = came.get(timeout=max(until - time.monotonic(), 0.0))
            except Empty:
                break
            waiting.remove(name)
            yield name, content
        yield from ((name, Failure("late")) for name in waiting)

    def close(self) -> None:
        """Let nodes finish what they do, and do nothing more: what comes next in this process draws, too.

        PyTorch's generator belongs to the process, and asynchronous runs end while other clusters are at work.
        """
        with self._idle:
            self._is_closed = True
            assert self._idle.wait_for(lambda: not self._at_work, timeout=120)

    def _carry_out(self, name: str, task: str, payload: bytes, came: "Queue[tuple[str, bytes | Failure]]") -> None:
        content = self._answer(name, task, payload)
        if content is not None:
            came.put((name, content))

    def _answer(self, name: str, task: str, payload: bytes) -> bytes | Failure | None:
        if name not in self.sites or name in self.gone:
            return Failure("gone")

        def honest() -> bytes:
            with self._idle:
                assert not self._is_closed, "the run is over"
                self._at_work += 1
            try:
                return answer(self.sites[name], self.stores[name], task, payload)
            finally:
                with self._idle:
                    self._at_work -= 1
                    self._idle.notify_all()

        fault = self.faults.get(name)
        try:
            content = honest() if fault is None else fault(task, payload, honest)
        except Exception:  # a node that breaks down; its words stay with it
            return Failure("failed")
        return Failure("gone") if name in self.gone else content
