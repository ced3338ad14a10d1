"""Nodes wait at the superlink until they have a message, so that hundreds of them cost almost nothing."""

import asyncio
import contextlib
from collections.abc import Callable, Collection

HOLD_SECONDS = 15.0
"""A node is answered within this time, before it, or a proxy in front of the superlink, gives up."""
LOOK_SECONDS = 0.1


class HeldReply:
    """The waiting nodes; one query finds the messages of all."""

    def __init__(self, ready: Callable[[], Collection[int]]) -> None:
        """Ask `ready`, in a thread, which nodes have a complete message."""
        self._ready = ready
        self._waiting = dict[int, asyncio.Event]()
        self._watcher: asyncio.Task[None] | None = None

    async def until_ready(self, node: int) -> None:
        """Return when a node's message is complete, or after a while; a node's new call ends its earlier wait."""
        if (earlier := self._waiting.get(node)) is not None:
            earlier.set()
        mine = self._waiting[node] = asyncio.Event()
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOLD_SECONDS):
                    await mine.wait()
        finally:
            if self._waiting.get(node) is mine:
                del self._waiting[node]

    async def _watch(self) -> None:
        while self._waiting:
            for node in await asyncio.to_thread(self._ready):
                if node in self._waiting:
                    self._waiting[node].set()
            await asyncio.sleep(LOOK_SECONDS)
