"""How long a fleet's superlink listens to callers that do not come to the point."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")

from uvicorn.server import ServerState  # noqa: E402

from atoll.fleet.flower import patience  # noqa: E402

GET = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server in a thread that answers whatever is asked after 0.1 s."""
    monkeypatch.setattr(patience, "HEAD_SECONDS", 0.5)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.1)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config, ready, ports = uvicorn.Config(answer, ws="none"), threading.Event(), list[int]()
    config.load()
    loop, over = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        state = ServerState()
        server = await loop.create_server(lambda: patience.Patient(config, state, {}, loop), "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await over.wait()
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await asyncio.sleep(0.05)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    ready.wait()
    yield ports[0]
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


def seconds_until_cut(caller: socket.socket) -> float:
    """Return how long it takes until the other side closes."""
    began = time.monotonic()
    caller.settimeout(5)
    try:
        while caller.recv(4096):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - began


@pytest.mark.more
def test_requests_one_after_the_other_are_answered(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as caller:
        for _ in range(3):
            caller.sendall(GET)
            assert caller.recv(4096).startswith(b"HTTP/1.1 200")
            time.sleep(0.6)  # between two requests it may be idle for longer


def test_a_request_may_come_while_the_one_before_it_is_being_answered(port: int) -> None:
    """A caller that has a whole answer does not know that the server has still to close it."""
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(GET * 2)
        for _ in range(2):
            assert caller.recv(20).startswith(b"HTTP/1.1 200")
            while b"\r\n\r\n" not in caller.recv(4096, socket.MSG_PEEK):
                time.sleep(0.01)
            assert caller.recv(4096).endswith(b"\r\n\r\n")


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nhost: he"])
def test_who_does_not_come_to_the_end_of_a_head_is_cut(port: int, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(begun)
        assert 0.2 < seconds_until_cut(caller) < 4


def test_a_head_without_end_is_cut_by_its_length(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "HEAD_SECONDS", 60.0)
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            caller.sendall(b"header: 1\r\n" * 10_000_000)


def test_requests_that_come_together_are_not_queued(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(GET * 1000)
        assert seconds_until_cut(caller) < 4
