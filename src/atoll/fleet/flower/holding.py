"""Nodes that ask for a message wait at the superlink until there is one, so that hundreds cost it next to nothing."""

import asyncio
import contextlib
from collections.abc import Callable, Collection

HOLD_SECONDS = 15.0
"""A node is answered by then: sooner than it, or a proxy before the superlink, gives the call up."""
LOOK_SECONDS = 0.1


class HeldReply:
    """Who is waiting; one look for all of them tells whose message is there."""

    def __init__(self, ready: Callable[[], Collection[int]]) -> None:
        """Ask `ready`, in a thread, for which nodes a message is there whole."""
        self._ready = ready
        self._waiting = dict[int, asyncio.Event]()
        self._watcher: asyncio.Task[None] | None = None

    async def until_ready(self, node: int) -> None:
        """Return once a node's message is there, or after a while; a node waits once, so its earlier call goes on."""
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
