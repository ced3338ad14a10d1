"""Whom a fleet's port admits: limits for strangers, for one address, and for one key."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from atoll.fleet.flower import connections
from atoll.fleet.flower.connections import Connections, listen
from atoll.fleet.flower.superlink import free_port
from atoll.fleet.folder.init import FleetPlan, init_fleet

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@dataclass
class Caller:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def address(self) -> tuple[str, int]:
        found: tuple[str, int] = self.writer.get_extra_info("sockname")
        return found

    async def is_cut(self, within: float = 0.05) -> bool:
        """Return whether the other side has closed."""
        try:
            return not await asyncio.wait_for(self.reader.read(), within)
        except TimeoutError:
            return False
        except ConnectionError:
            return True


class Silent(asyncio.Protocol):
    """Serves a connection without a word."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.lost = lost

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost()


class Port:
    """A port of this machine, and those who call there."""

    def __init__(self, contexts: Contexts) -> None:
        context, self.trust = contexts
        self.connections, self.callers = Connections(0), list[Caller]()
        self.listener = listen("127.0.0.1", 0)
        self.task = asyncio.create_task(self.connections.accept(self.listener, Silent, context))

    async def call(self, last: int, tls: bool = False) -> Caller:
        """Connect from the address 127.0.0.`last`."""
        secure: dict[str, Any] = {"ssl": self.trust, "server_hostname": "127.0.0.1"} if tls else {}
        port = self.listener.getsockname()[1]
        found = await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{last}", 0), **secure)
        self.callers.append(Caller(*found))
        while self.callers[-1].address not in self.connections._callers:
            await asyncio.sleep(0.001)
        return self.callers[-1]

    def know(self, caller: Caller, node: int | None) -> None:
        self.connections.know(caller.address, node)

    async def close(self) -> None:
        for caller in self.callers:
            caller.writer.transport.abort()
        while self.connections._callers:
            await asyncio.sleep(0.001)
        self.task.cancel()
        self.listener.close()


def at_a_port(contexts: Contexts, do: Callable[[Port], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        port = Port(contexts)
        await do(port)
        await asyncio.wait_for(port.close(), 5)

    asyncio.run(run())


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    plan = FleetPlan(2, "127.0.0.1", listen="127.0.0.1", port=free_port())
    folder = init_fleet(tmp_path_factory.mktemp("port") / "fleet", plan).folder
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return context, ssl.create_default_context(cafile=str(folder / "ca.pem"))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGERS", 4)
    monkeypatch.setattr(connections, "OF_ADDRESS", 3)
    monkeypatch.setattr(connections, "OF_NODE", 2)


def test_of_too_many_from_one_address_the_first_is_cut(contexts: Contexts) -> None:
    async def do(port: Port) -> None:
        callers = [await port.call(2) for _ in range(5)]
        other = await port.call(3)
        assert [await each.is_cut() for each in (*callers, other)] == [True, True, False, False, False, False]

    at_a_port(contexts, do)


def test_of_too_many_strangers_the_first_of_who_has_most_is_cut(contexts: Contexts) -> None:
    async def do(port: Port) -> None:
        callers = [await port.call(last) for last in (2, 3, 3, 4, 5)]
        assert [await each.is_cut() for each in callers] == [False, True, False, False, False]

    at_a_port(contexts, do)


def test_who_has_shown_a_key_is_no_stranger_and_has_a_nodes_share(contexts: Contexts) -> None:
    async def do(port: Port) -> None:
        nodes = [await port.call(2, tls=True) for _ in range(3)]
        port.know(nodes[0], 7)
        port.know(nodes[1], 7)
        port.know(nodes[0], 7)  # its first call is now the latest
        server = await port.call(2, tls=True)
        port.know(server, None)
        strangers = [await port.call(2) for _ in range(5)]
        assert not any([await each.is_cut() for each in (*nodes[:2], server)])
        assert [await each.is_cut() for each in strangers] == [True, True, False, False, False]
        port.know(nodes[2], 7)  # too late: as a stranger it was cut
        fresh = await port.call(4, tls=True)
        port.know(fresh, 7)
        assert [await each.is_cut() for each in (*nodes, fresh)] == [False, True, True, False]

    at_a_port(contexts, do)


def test_who_does_not_shake_hands_is_cut(contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.1)

    async def do(port: Port) -> None:
        caller = await port.call(2)
        assert await caller.is_cut(5)
        assert port.connections._callers == {}

    at_a_port(contexts, do)


def test_who_is_gone_is_forgotten(contexts: Contexts) -> None:
    async def do(port: Port) -> None:
        for tls in (False, True):
            caller = await port.call(2, tls)
            caller.writer.transport.abort()
            while port.connections._callers:
                await asyncio.sleep(0.001)

    at_a_port(contexts, do)


def test_without_descriptors_the_port_listens_on(contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def do(port: Port) -> None:
        loop = asyncio.get_running_loop()
        accept, left = loop.sock_accept, [2]

        async def fail(listener: socket.socket) -> tuple[socket.socket, object]:
            if left[0]:
                left[0] -= 1
                raise OSError(24, "Too many open files")
            return await accept(listener)

        monkeypatch.setattr(loop, "sock_accept", fail)
        await port.call(3)
        await port.call(2)
        assert left == [0]

    at_a_port(contexts, do)


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    assert connections._network_of("2001:db8::1") == connections._network_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert connections._network_of("fe80::1%eth0") == "fe80::/64"
    assert connections._network_of("10.0.0.1") == "10.0.0.1"
