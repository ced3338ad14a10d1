"""A network that is not to be relied on: it forwards connections, and cuts, delays or corrupts what passes."""

import contextlib
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

Change = Callable[[bytes], bytes]


class Proxy:
    """Forwards connections to a port of this machine, from `port`, while it is entered."""

    def __init__(self, target: int) -> None:
        """Listen; `target` need not be there yet."""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = set[socket.socket]()
        self._armed = deque[Change]()
        self._is_away = threading.Event()
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        """Begin to forward."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Cut all, and let nobody in."""
        self._is_away.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> int:
        """Cut all connections; return how many sockets that were."""
        ends = list(self._open)
        for end in ends:
            self._open.discard(end)  # now, not when its thread wakes
            _shut(end)
        return len(ends)

    def away(self, is_away: bool) -> None:
        """Cut all and let no new connections through, or let them again."""
        if is_away:
            self._is_away.set()
            self.cut()
        else:
            self._is_away.clear()

    def corrupt(self, draw: random.Random, done: Callable[[], None]) -> None:
        """Flip a bit of one byte of what passes next, either way; call `done` when it is."""

        def flip(data: bytes) -> bytes:
            changed = bytearray(data)
            changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            done()
            return bytes(changed)

        self._armed.append(flip)

    def delay(self, seconds: float, done: Callable[[], None]) -> None:
        """Hold what passes next, either way, for so long; call `done` when it is held."""

        def hold(data: bytes) -> bytes:
            done()
            time.sleep(seconds)
            return data

        self._armed.append(hold)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            if self._is_away.is_set():
                raise OSError("away")
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        self._open.update((near, far))
        for ends in ((near, far), (far, near)):
            threading.Thread(target=self._copy, args=ends, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with contextlib.suppress(IndexError):
                    data = self._armed.popleft()(data)
                target.sendall(data)
        for end in (source, target):
            self._open.discard(end)
            _shut(end)
            end.close()


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
