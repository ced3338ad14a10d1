"""What `make chaos` does to a network is what it says: a changed bit is seen as a broken connection."""

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.fleet.folder.init import FleetPlan, init_fleet
from tests.chaos.proxy import Proxy


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """In front of a server that sends back what it is sent, over TLS."""
    folder = init_fleet(tmp_path / "fleet", FleetPlan(1, "127.0.0.1")).folder
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as served:
                    while data := served.recv(1000):
                        served.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=[listener], daemon=True).start()
        with Proxy(listener.getsockname()[1]) as found:
            yield found
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def caller(proxy: Proxy, tmp_path: Path) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=str(tmp_path / "fleet" / "ca.pem"))
    with (
        socket.create_connection(("127.0.0.1", proxy.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as found,
    ):
        found.settimeout(10)
        assert echoed(found) == b"hello"
        yield found


def echoed(caller: ssl.SSLSocket) -> bytes:
    """Return what comes back of a word."""
    caller.sendall(b"hello")
    return caller.recv(1000)


def test_a_changed_bit_breaks_the_connection(proxy: Proxy, caller: ssl.SSLSocket) -> None:
    done = list[bool]()

    class First(random.Random):
        def randrange(self, *_: int) -> int:  # type: ignore[override]
            return 7  # in what is encrypted, past a record's head

    proxy.corrupt(First(), lambda: done.append(True))
    with contextlib.suppress(OSError):
        assert echoed(caller) == b""
    assert done == [True]


def test_a_cut_is_an_end_and_what_is_away_lets_nobody_in(proxy: Proxy, caller: ssl.SSLSocket) -> None:
    assert proxy.cut() == 2
    with contextlib.suppress(OSError):
        assert echoed(caller) == b""
    proxy.away(True)
    with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
        plain.settimeout(10)
        with contextlib.suppress(OSError):
            assert plain.recv(1) == b""
    assert proxy.cut() == 0


def test_what_is_held_comes_later(proxy: Proxy, caller: ssl.SSLSocket) -> None:
    began, done = time.monotonic(), list[bool]()
    proxy.delay(0.5, lambda: done.append(True))
    assert (echoed(caller), done) == (b"hello", [True])
    assert time.monotonic() - began >= 0.5
