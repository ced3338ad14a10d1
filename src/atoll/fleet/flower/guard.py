"""The guard in front of Flower's superlink: who may call, how much each may send, and for whom each may speak.

No body is read before the caller has presented the fleet's secret or signed with a registered key. A node may then
make seven kinds of calls, only for itself, and send no more than requested.
"""

import asyncio
import contextlib
import hmac
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from atoll.fleet.flower import bodies
from atoll.fleet.flower.bodies import App, Message, Receive, Send
from atoll.fleet.flower.holding import HeldReply
from atoll.fleet.flower.refusals import Refusals

HEADER = "x-atoll-secret"
OPEN = "/atoll/open"
"""With the secret: admit nodes. Before that they are told to retry later, not that they are unknown."""
FORGET = "/atoll/forget"
"""With the secret and a JSON list of messages: their replies are no longer expected."""
# Overhead of a reply: names, identifiers, lengths. Every other body from a node is smaller.
OVERHEAD = 64 * 1024
# Total size of bodies being received or processed, over all nodes; a larger one may come alone.
MOST_IN_FLIGHT = 64 * 2**20
UNANNOUNCED = 409
"""The status of a part that no push-messages call announced, as far as a restarted superlink knows."""
# A reply, its content, and its one record.
PARTS_OF_A_REPLY = 3

_FLEET = "/v1/fleet/"
_PUSH, _PUSH_OBJECT, _PULL, _PULL_OBJECT = (
    _FLEET + call for call in ("push-messages", "push-object", "pull-messages", "pull-object")
)
_CALLS = {_PUSH, _PUSH_OBJECT, _PULL, _PULL_OBJECT} | {
    _FLEET + call for call in ("activate-node", "deactivate-node", "send-node-heartbeat")
}


@dataclass(frozen=True)
class GuardedRequest:
    """A message that awaits its reply: its node, and the largest size of the reply."""

    node: int
    most: int


@dataclass(frozen=True)
class GuardedReply:
    """A node's announced reply: sender, recipient, the message that it answers, and the parts that will follow."""

    identifier: str
    source: int
    to_server: bool
    to: str
    parts: tuple[str, ...]


class CallLedger(Protocol):
    """What the guard needs from the superlink; calls may be slow and run in a thread."""

    def node_of(self, scope: Message) -> int | None:
        """Return the node whose registered key signed a request's headers."""

    def asked(self, identifier: str) -> GuardedRequest | None:
        """Return the message with this identifier, if its reply is still expected."""

    def forget(self, messages: Sequence[str], replies: Sequence[str]) -> None:
        """Delete messages and their replies."""

    def ready(self) -> Collection[int]:
        """Return the nodes with a complete message."""

    def give_again(self, node: int) -> None:
        """Deliver messages that a node has not answered to it again."""

    def drop_unless_whole(self, reply: str) -> bool:
        """Delete an announced reply whose parts will not come; return whether it was one."""

    def read_reply(self, body: bytes) -> GuardedReply | None:
        """Return the reply that a push-messages call announces; None if it is not exactly one."""

    def read_part(self, body: bytes) -> tuple[str, int] | None:
        """Return the identifier and bytes of a push-object call."""


@dataclass
class _Push:
    """A reply in transit: its message, the largest size of all parts, and the size of each received part."""

    reply: str
    to: str
    most: int
    parts: dict[str, int] = field(default_factory=dict)

    def left_for(self, part: str) -> int:
        return self.most - sum(size for name, size in self.parts.items() if name != part)


class Guard:
    """An ASGI application around Flower's."""

    def __init__(
        self,
        app: App,
        secret: str,
        ledger: CallLedger,
        max_bytes: int,
        is_open: bool = True,
        know: Callable[[Any, int | None], object] = lambda client, node: None,
    ) -> None:
        """Guard `app`; callers with the secret may send `max_bytes` at once; `know` is told whose connections are."""
        self._app, self._secret, self._ledger = app, secret.encode(), ledger
        self._max_bytes, self._is_open = max_bytes, is_open
        self._know = know
        self._pushes = dict[int, _Push]()  # a node sends its replies one by one
        self._busy = set[int]()
        self._in_flight = 0
        self._holding = HeldReply(ledger.ready)
        self._refusals = Refusals()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            status = await self._serve(scope, receive, send)
            if status is not None:
                if status >= 400:
                    self._refusals.add(status, str((scope.get("client") or ("nowhere",))[0]))
                await bodies.answer(send, status)

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> int | None:
        """Pass on a request, or return the status to answer with."""
        path, headers = scope["path"], dict(scope["headers"])
        if self._secret and hmac.compare_digest(headers.get(HEADER.encode(), b""), self._secret):
            self._know(scope.get("client"), None)
            return await self._serve_operator(path, headers, scope, receive, send)
        if path not in _CALLS:
            return 404
        if not self._is_open:
            return 503
        if b"flwr-signature" not in headers:
            return 401
        node = await asyncio.to_thread(self._ledger.node_of, scope)
        if node is None:
            return 401
        self._know(scope.get("client"), node)
        if path not in (_PUSH_OBJECT, _PULL_OBJECT):
            return await self._serve_node(node, OVERHEAD, headers, scope, receive, send)
        if node in self._busy:  # usually a request on a connection that was cut
            return 503
        push = self._pushes.get(node)
        if path == _PUSH_OBJECT and push is None:
            return UNANNOUNCED
        self._busy.add(node)
        with contextlib.ExitStack() as turn:
            turn.callback(self._busy.discard, node)
            limit = OVERHEAD + (push.most if push is not None and path == _PUSH_OBJECT else 0)
            # The node may call again as soon as it has its answer, possibly before this function ends.
            return await self._serve_node(node, limit, headers, scope, receive, bodies.before_last(send, turn.close))

    async def _serve_operator(
        self, path: str, headers: dict[bytes, bytes], scope: Message, receive: Receive, send: Send
    ) -> int | None:
        length = bodies.length_of(headers)
        if length is None or length > self._max_bytes:
            return 413
        if path == OPEN:
            self._is_open = True
            return 200
        if path == FORGET:
            body = await bodies.read(receive, length)
            if body is None:
                return 400
            messages = json.loads(body)
            replies = [push.reply for push in self._pushes.values() if push.to in messages]
            await asyncio.to_thread(self._ledger.forget, messages, replies)
            return 200
        await self._app(scope, receive, send)
        return None

    async def _serve_node(
        self, node: int, limit: int, headers: dict[bytes, bytes], scope: Message, receive: Receive, send: Send
    ) -> int | None:
        length = bodies.length_of(headers)
        if length is None:
            return 411
        if length > limit:
            return 413
        if scope["path"] == _PULL:
            push = self._pushes.get(node)  # whoever sent it is through, or was killed and may answer anew
            if push is not None and await asyncio.to_thread(self._ledger.drop_unless_whole, push.reply):
                self._pushes.pop(node, None)
            await self._holding.until_ready(node)
        if length > OVERHEAD and self._in_flight and self._in_flight + length > MOST_IN_FLIGHT:
            return 503
        self._in_flight += length
        try:
            body = await bodies.read(receive, length)
            if body is None:
                return 408
            status = await asyncio.to_thread(self._check, scope["path"], node, body)
            if status is None:
                await self._app(scope, bodies.replaying(body, receive), bodies.in_pieces(send))
            return status
        finally:
            self._in_flight -= length

    def _check(self, path: str, node: int, body: bytes) -> int | None:
        """Return the status with which a node's call is rejected, if any; Flower checks the caller's identity."""
        if path == _PUSH:
            return self._check_reply(node, self._ledger.read_reply(body))
        if path == _PUSH_OBJECT:
            return self._check_part(self._pushes.get(node), self._ledger.read_part(body))
        if path == _PULL:  # it requests the next message only after answering the last one, or if it lost that
            self._ledger.give_again(node)
        return None

    def _check_reply(self, node: int, reply: GuardedReply | None) -> int | None:
        """Accept a reply only from the node itself, to the server, to a pending request, in as few parts as ours."""
        if reply is None or len(reply.parts) > PARTS_OF_A_REPLY:
            return 400
        asked = self._ledger.asked(reply.to)
        if reply.source != node or not reply.to_server or asked is None or asked.node != node:
            return 403
        known = self._pushes.get(node)
        if known is not None and known.to == reply.to:  # another would be stored beside the first
            return None if known.reply == reply.identifier else 403
        self._pushes[node] = _Push(reply.identifier, reply.to, asked.most + OVERHEAD, dict.fromkeys(reply.parts, 0))
        return None

    def _check_part(self, push: _Push | None, part: tuple[str, int] | None) -> int | None:
        if push is None or part is None or part[0] not in push.parts:
            return UNANNOUNCED
        name, size = part
        if size > push.left_for(name):
            return 413
        push.parts[name] = size
        return None
