"""Connections, from before TLS on: few of strangers, fewer of one address, and of a node no more than its share."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from atoll.fleet.flower.refusals import TOO_MANY, Refusals

STRANGERS, OF_ADDRESS = 256, 64
"""Connections that have not shown a key: of all, and of one address; and two for each node, which may share one."""
OF_NODE = 4
"""A node calls on two; after it was cut off, its former ones remain for a while."""
HANDSHAKE_SECONDS = 5.0
_BACKLOG = 2048

Address = tuple[str, int]
ProtocolOf = Callable[[Callable[[], None]], asyncio.Protocol]
"""Makes what serves one connection, and calls the function when that is lost."""


@dataclass(eq=False)
class _Caller:
    """A connection: its address, who counts as one with it, how it is cut, and whose key it has shown."""

    address: Address
    network: str
    cut: Callable[[], object] = bool
    is_stranger: bool = True
    node: int | None = None


class Connections:
    """Accepts connections. Of too many, those that came first are cut, so that there is room for the next."""

    def __init__(self, nodes: int) -> None:
        self._most, self._most_of_address = STRANGERS + 2 * nodes, OF_ADDRESS + 2 * nodes
        self._refusals = Refusals()
        self._callers = dict[Address, _Caller]()  # least recently used first
        self._tasks = set[asyncio.Task[None]]()

    async def accept(self, listener: socket.socket, protocol_of: ProtocolOf, context: ssl.SSLContext) -> None:
        """Accept for ever, one connection in a turn of the event loop: a flood waits in line with nodes' calls."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)
            try:
                accepted, found = await loop.sock_accept(listener)
            except OSError:  # it is gone again, or there are no descriptors
                await asyncio.sleep(0.1)
                continue
            caller = _Caller((found[0], found[1]), _network_of(found[0]))
            self._make_room(caller.network)
            task = loop.create_task(self._shake_hands(caller, accepted, protocol_of, context))
            caller.cut = task.cancel
            self._callers[caller.address] = caller
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def know(self, address: Address, node: int | None) -> None:
        """Count a connection as a node's, whose key it has shown; without a node, as the server's own."""
        caller = self._callers.pop(address, None)
        if caller is None:  # it was cut
            return
        caller.is_stranger, caller.node = False, node
        self._callers[address] = caller
        own = [each for each in self._callers.values() if each.node == node]
        if node is not None and len(own) > OF_NODE:
            self._cut(own[0])

    async def _shake_hands(
        self, caller: _Caller, accepted: socket.socket, protocol_of: ProtocolOf, context: ssl.SSLContext
    ) -> None:
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol_of(lambda: self._forget(caller)),
                accepted,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except (OSError, asyncio.CancelledError):
            self._forget(caller)
        else:
            caller.cut = transport.abort

    def _make_room(self, network: str) -> None:
        strangers = [each for each in self._callers.values() if each.is_stranger]
        of_network = [each for each in strangers if each.network == network]
        if len(of_network) >= self._most_of_address:
            self._cut(of_network[0])
        elif len(strangers) >= self._most:
            ((most, _),) = Counter(each.network for each in strangers).most_common(1)
            self._cut(next(each for each in strangers if each.network == most))

    def _cut(self, caller: _Caller) -> None:
        self._forget(caller)
        self._refusals.add(TOO_MANY, caller.address[0])
        caller.cut()

    def _forget(self, caller: _Caller) -> None:
        if self._callers.get(caller.address) is caller:
            del self._callers[caller.address]


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    made.setblocking(False)
    return made


def _network_of(host: str) -> str:
    """Return who counts as one address: all 2^64 of a network, where addresses have 128 bits."""
    if not isinstance(ip_address(host), IPv6Address):
        return host
    return str(ip_network((host.partition("%")[0], 64), strict=False))
