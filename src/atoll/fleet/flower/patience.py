"""A server whose connections have limits: their number, time and size of a head, and one request at a time."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from atoll.fleet.flower.connections import Connections, listen

HEAD_SECONDS = 10.0
MOST_HEAD_BYTES = 32 * 1024
# Time for a rejected caller to read the reason, whatever it still sends.
LINGER_SECONDS = 0.5


class Patient(HttpToolsProtocol):
    """A connection that is cut if its caller is slow with a request's head, or pipelines requests.

    uvicorn waits for a head without limit, keeps everything sent so far, and queues pipelined requests.
    """

    _late: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def __init__(self, *given: Any, lost: Callable[[], object] = bool, **named: Any) -> None:
        """Call `lost` when the connection is; the rest is uvicorn's."""
        super().__init__(*given, **named)
        self._lost = lost

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._lost()
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process data, unless a head grows too large."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._late is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.transport.abort()

    def on_message_begin(self) -> None:
        """Start the timer for the next head on the same connection."""
        if self.pipeline:  # one may come early: a caller can have the complete answer before the server has closed it
            self.transport.abort()
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Serve the request."""
        self._expect_nothing()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep what is read next."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of a request."""
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or cut the connection: closing alone would keep reading until TLS ends."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.loop.call_later(LINGER_SECONDS if self.cycle.more_body else HEAD_SECONDS, self.transport.abort)

    def _expect_head(self) -> None:
        self._expect_nothing()
        self._late = self.loop.call_later(HEAD_SECONDS, self._give_up)
        self._head_bytes = 0

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self, *_: Any) -> None:
        self._late = None
        self.transport.abort()


class PatientServer(Server):
    """A server over TLS that leaves to `Connections` whom it serves."""

    def __init__(self, config: Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: Any = None) -> None:
        """Start the application, then listen."""
        await super().startup([])
        if self.started:
            listener = listen(self.config.host, self.config.port)
            assert self.config.ssl is not None
            accepting = self._connections.accept(listener, self._protocol_of, self.config.ssl)
            self._accepting = asyncio.create_task(accepting)

    def _protocol_of(self, lost: Callable[[], None]) -> Patient:
        return Patient(config=self.config, server_state=self.server_state, app_state=self.lifespan.state, lost=lost)
