"""The guard before a fleet's superlink, alone: whom it lets in, how much it reads, and for whom a node may speak."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from atoll.fleet.flower import bodies, holding
from atoll.fleet.flower import guard as guards
from atoll.fleet.flower.bodies import Message
from atoll.fleet.flower.guard import OVERHEAD, Guard, GuardedReply, GuardedRequest

SECRET = "s" * 64
MOST = 1000
PUSH, PART, PULL, ASK = (
    f"/v1/fleet/{call}" for call in ("push-messages", "push-object", "pull-object", "pull-messages")
)
KEYS = ("seven", "eight")


class Notes:
    """A ledger in which node 7 was asked for m7, and node 8 for m8; bodies are JSON."""

    def __init__(self) -> None:
        self.messages = {"m7": GuardedRequest(7, MOST), "m8": GuardedRequest(8, MOST)}
        self.forgotten: list[Any] = []
        self.given_again: list[int] = []
        self.dropped: list[str] = []
        self.arrived: set[str] = set()
        self.whole = {7, 8}
        self.looks = 0

    def node_of(self, scope: Message) -> int | None:
        return {b"seven": 7, b"eight": 8}.get(dict(scope["headers"])[b"flwr-signature"])

    def asked(self, identifier: str) -> GuardedRequest | None:
        return self.messages.get(identifier)

    def forget(self, messages: Sequence[str], replies: Sequence[str]) -> None:
        self.forgotten.append((list(messages), list(replies)))

    def ready(self) -> set[int]:
        self.looks += 1
        return self.whole

    def give_again(self, node: int) -> None:
        self.given_again.append(node)

    def drop_unless_whole(self, reply: str) -> bool:
        self.dropped.append(reply)
        return reply not in self.arrived

    def read_reply(self, body: bytes) -> GuardedReply | None:
        told = json.loads(body)
        return GuardedReply(**told | {"parts": tuple(told["parts"])}) if told else None

    def read_part(self, body: bytes) -> tuple[str, int] | None:
        name, _, content = body.partition(b":")
        return name.decode(), len(content)


class Fleet:
    """A guard before an application that notes what reaches it."""

    def __init__(self, is_open: bool = True) -> None:
        self.notes, self.reached = Notes(), list[tuple[str, bytes]]()
        self.guard = Guard(self._serve, SECRET, self.notes, 10 * MOST, is_open)
        self.read = 0
        self.holding: asyncio.Event | None = None
        self.lingering: asyncio.Event | None = None

    async def _serve(self, scope: Message, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.reached.append((scope["path"], body))
        if self.holding is not None:
            await self.holding.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 10})
        if self.lingering is not None:
            await self.lingering.wait()

    async def post(self, path: str, body: bytes = b"", key: str | None = None, **headers: str) -> int:
        """Return the status of a call; the body comes in pieces of 100 bytes, which are counted as they are read."""
        pieces = [body[begin : begin + 100] for begin in range(0, len(body), 100)] or [b""]
        statuses = list[int]()
        told = {"content-length": str(len(body))} | ({"flwr-signature": key} if key else {}) | headers
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in told.items() if value]

        async def receive() -> Message:
            await asyncio.sleep(0)
            piece = pieces.pop(0)
            self.read += len(piece)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await self.guard({"type": "http", "path": path, "headers": raw}, receive, send)
        (status,) = statuses
        return status

    def call(self, path: str, body: bytes = b"", key: str | None = None, **headers: str) -> int:
        """Make a call by itself."""
        return asyncio.run(self.post(path, body, key, **headers))

    def call_both(self, first: tuple[str, bytes, str], second: tuple[str, bytes, str]) -> tuple[int, int]:
        """Make two calls, the second while the first waits for its answer."""

        async def both() -> tuple[int, int]:
            before, self.holding = len(self.reached), asyncio.Event()
            held = asyncio.create_task(self.post(*first))
            while len(self.reached) == before:
                await asyncio.sleep(0.001)
            meanwhile = asyncio.create_task(self.post(*second))
            while len(self.reached) < before + 2 and not meanwhile.done():
                await asyncio.sleep(0.001)
            self.holding.set()
            return await held, await meanwhile

        try:
            return asyncio.run(both())
        finally:
            self.holding = None

    def push(self, key: str = "seven", **changes: Any) -> int:
        """Announce node 7's reply, or a changed one."""
        told = {"identifier": "r", "source": 7, "to_server": True, "to": "m7", "parts": ["r", "c", "b"]}
        return self.call(PUSH, json.dumps(told | changes).encode(), key)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.mark.parametrize("path", [PUSH, PART, PULL, ASK, "/v1/fleet/activate-node", "/v1/control/start-run", "/"])
@pytest.mark.parametrize("key", [None, "nine"])
def test_nothing_of_a_strangers_body_is_read(fleet: Fleet, path: str, key: str | None) -> None:
    assert fleet.call(path, bytes(5000), key) == (401 if path.startswith("/v1/fleet") else 404)
    assert (fleet.read, fleet.reached) == (0, [])


def test_a_reply_is_passed_on_part_by_part(fleet: Fleet) -> None:
    assert fleet.push() == 200
    assert fleet.call(PART, b"b:" + bytes(MOST), "seven") == 200
    assert fleet.call(PART, b"b:" + bytes(MOST), "seven") == 200  # once more, if the answer was lost
    assert [path for path, _ in fleet.reached] == [PUSH, PART, PART]
    assert fleet.reached[1][1] == b"b:" + bytes(MOST)


@pytest.mark.parametrize(
    ("changes", "key", "status"),
    [
        ({"source": 8}, "seven", 403),  # as another
        ({"source": 1}, "seven", 403),  # as the server
        ({"to_server": False}, "seven", 403),  # to another
        ({"to": "m8"}, "seven", 403),  # to what another was asked
        ({"to": "m8", "source": 8}, "seven", 403),
        ({"source": 7}, "eight", 403),
        ({"to": "m9"}, "seven", 403),  # to what nobody was asked
        ({"parts": ["r", "c", "b", "more"]}, "seven", 400),
    ],
)
def test_a_node_speaks_for_itself_alone_and_of_what_it_was_asked(
    fleet: Fleet, changes: dict[str, Any], key: str, status: int
) -> None:
    assert fleet.push(key, **changes) == status
    assert fleet.reached == []


def test_what_is_no_reply_is_refused(fleet: Fleet) -> None:
    assert fleet.call(PUSH, b"null", "seven") == 400


@pytest.mark.parametrize("call", ["confirm-message-received", "register-node", "get-run"])
def test_a_node_makes_the_calls_that_it_needs_alone(fleet: Fleet, call: str) -> None:
    assert fleet.call(f"/v1/fleet/{call}", b"m7", "seven") == 404
    assert fleet.reached == []


def test_only_who_pulls_is_given_again_what_it_has_not_answered(fleet: Fleet) -> None:
    assert fleet.call(ASK, b"", "stranger") == 401
    fleet.call(PULL, b"part", "seven")
    assert fleet.notes.given_again == []
    assert fleet.call(ASK, b"of node 8", "seven") == 200
    assert (fleet.notes.given_again, fleet.notes.dropped) == ([7], [])
    assert fleet.push() == 200
    assert fleet.call(ASK, b"", "seven") == 200
    assert fleet.notes.dropped == ["r"]  # unless all of it is there


def test_a_node_stores_one_reply_to_what_it_was_asked(fleet: Fleet) -> None:
    """Another is taken only once the first is dropped, as after a kill, never beside it."""
    assert fleet.push() == 200
    assert fleet.call(PART, b"b:" + bytes(MOST), "seven") == 200
    assert fleet.push(identifier="s", parts=["s", "c", "b"]) == 403
    assert fleet.push() == 200  # the same, if the answer was lost
    assert fleet.call(ASK, b"", "seven") == 200
    assert fleet.call(PART, b"b:" + bytes(MOST), "seven") == guards.UNANNOUNCED
    assert fleet.push(identifier="s", parts=["s", "c", "b"]) == 200
    fleet.notes.arrived.add("s")
    assert fleet.call(ASK, b"", "seven") == 200
    assert fleet.push() == 403  # the second is whole
    assert fleet.call(guards.FORGET, b'["m7"]', x_atoll_secret=SECRET) == 200
    assert fleet.notes.forgotten == [(["m7"], ["s"])]


def test_who_pulls_waits_until_a_message_is_there_for_it_alone(fleet: Fleet) -> None:
    async def pull() -> list[str]:
        fleet.notes.whole = set()
        calls = [asyncio.create_task(fleet.post("/v1/fleet/pull-messages", key.encode(), key)) for key in KEYS]
        await asyncio.sleep(3 * holding.LOOK_SECONDS)
        assert fleet.reached == []
        fleet.notes.whole = {8}
        assert await asyncio.wait_for(calls[1], 5) == 200
        passed = [body.decode() for _, body in fleet.reached]
        calls[0].cancel()
        return passed

    assert asyncio.run(pull()) == ["eight"]
    assert fleet.notes.looks < 10  # for all together, and not without end


def test_who_pulls_is_answered_after_a_while(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "HOLD_SECONDS", 0.2)
    fleet.notes.whole = set()
    assert fleet.call("/v1/fleet/pull-messages", b"", "seven") == 200


def test_a_node_waits_once(fleet: Fleet) -> None:
    async def pull() -> int:
        fleet.notes.whole = set()
        first = asyncio.create_task(fleet.post("/v1/fleet/pull-messages", b"", "seven"))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(fleet.post("/v1/fleet/pull-messages", b"", "seven"))
        status = await asyncio.wait_for(first, 5)
        assert not second.done()
        second.cancel()
        return status

    assert asyncio.run(pull()) == 200


def test_a_pull_that_is_too_long_does_not_wait(fleet: Fleet) -> None:
    fleet.notes.whole = set()
    assert fleet.call("/v1/fleet/pull-messages", bytes(2 * OVERHEAD), "seven") == 413


def test_a_part_that_was_not_announced_is_refused(fleet: Fleet) -> None:
    assert fleet.call(PART, b"b:" + bytes(10), "seven") == 409
    assert fleet.read == 0
    fleet.push()
    assert fleet.call(PART, b"other:" + bytes(10), "seven") == 409
    assert fleet.call(PART, b"b:" + bytes(10), "eight") == 409
    assert fleet.reached[1:] == []


def test_all_parts_together_are_no_longer_than_was_asked(fleet: Fleet) -> None:
    fleet.push()
    fleet.read = 0
    assert fleet.call(PART, b"b:" + bytes(MOST + 2 * OVERHEAD), "seven") == 413
    assert fleet.read == 0
    assert fleet.call(PART, b"b:" + bytes(MOST), "seven") == 200
    assert fleet.call(PART, b"c:" + bytes(OVERHEAD + 1), "seven") == 413
    assert fleet.push() == 200  # announced again, which makes no room
    assert fleet.call(PART, b"c:" + bytes(OVERHEAD + 1), "seven") == 413
    assert fleet.call(PART, b"c:" + bytes(OVERHEAD), "seven") == 200


def test_bodies_have_a_length_and_only_parts_are_long(fleet: Fleet) -> None:
    fleet.push()
    for path in (PUSH, PULL, ASK, "/v1/fleet/send-node-heartbeat"):
        assert fleet.call(path, bytes(OVERHEAD + 1), "seven") == 413
    assert fleet.call(PART, b"b:", "seven", content_length="", transfer_encoding="chunked") == 411
    assert fleet.call(PART, b"b:", "seven", content_length="-1") == 411
    assert fleet.call(PART, b"b:" + bytes(500), "seven", content_length="10") == 408  # more than it said
    assert fleet.read < 1000


def test_a_slow_body_is_given_up(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.push()
    fleet.reached.clear()
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.0)
    monkeypatch.setattr(bodies, "BYTES_A_SECOND", 1e9)
    assert fleet.call(PART, b"b:" + bytes(500), "seven") == 408
    assert fleet.reached == []


def test_bytes_in_flight_are_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MOST_IN_FLIGHT", 1500)
    fleet.push()
    fleet.push("eight", identifier="r8", source=8, to="m8", parts=["r8", "b"])
    part = b"b:" + bytes(MOST)
    monkeypatch.setattr(guards, "OVERHEAD", len(part) - 1)
    assert fleet.call_both((PART, part, "seven"), (PART, part, "eight")) == (200, 503)
    assert fleet.call_both((PART, part, "seven"), (PULL, bytes(600), "eight")) == (200, 200), "short calls go on"
    assert fleet.call(PART, b"b:" + bytes(MOST), "eight") == 200


def test_a_node_makes_one_large_call_at_a_time(fleet: Fleet) -> None:
    fleet.push()
    part = b"b:" + bytes(10)
    assert fleet.call_both((PART, part, "seven"), (PULL, b"", "seven")) == (200, 503)
    assert fleet.call_both((PART, part, "seven"), (PULL, b"", "eight")) == (200, 200)


def test_a_node_that_has_its_answer_may_ask_again(fleet: Fleet) -> None:
    """An application that is not done after its answer's last piece does not make the node's next call one too many."""
    fleet.push()

    async def in_turn() -> tuple[int, int]:
        fleet.lingering = asyncio.Event()
        first = asyncio.create_task(fleet.post(PART, b"b:1", "seven"))
        while len(fleet.reached) < 2:  # the push, and the first part, which is answered at once
            await asyncio.sleep(0.001)
        second = asyncio.create_task(fleet.post(PART, b"c:1", "seven"))
        while len(fleet.reached) < 3 and not second.done():
            await asyncio.sleep(0.001)
        fleet.lingering.set()
        return await first, await second

    assert asyncio.run(in_turn()) == (200, 200)


def test_the_secret_opens_everything_and_what_is_forgotten_is_deleted() -> None:
    fleet = Fleet(is_open=False)
    assert fleet.call("/v1/fleet/activate-node", key="seven") == 503
    assert fleet.call(guards.OPEN, x_atoll_secret="s" * 63) == 404
    assert fleet.call(guards.OPEN, x_atoll_secret=SECRET) == 200
    fleet.push()
    assert fleet.call("/v1/runtime/push-object", bytes(9 * MOST), x_atoll_secret=SECRET) == 200
    assert fleet.call("/v1/runtime/push-object", bytes(11 * MOST), x_atoll_secret=SECRET) == 413
    assert fleet.call(guards.FORGET, b'["m7", "other"]', x_atoll_secret=SECRET) == 200
    assert fleet.notes.forgotten == [(["m7", "other"], ["r"])]


def test_an_empty_secret_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SECRET", "")
    fleet = Fleet(is_open=False)
    assert fleet.call(guards.OPEN) == 404
    assert fleet.call(guards.OPEN, x_atoll_secret="") == 404


def test_a_long_answer_is_sent_as_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def stuck(message: Message) -> None:
        await asyncio.sleep(10)

    async def say(to: Any) -> None:
        await bodies.in_pieces(to)(message)

    content = bytes(range(256)) * 4096
    message = {"type": "http.response.body", "body": content}
    asyncio.run(say(send))
    assert len(sent) == 4
    assert b"".join(part["body"] for part in sent) == content
    assert [part["more_body"] for part in sent] == [True, True, True, False]
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.0)
    monkeypatch.setattr(bodies, "BYTES_A_SECOND", 1e9)
    with pytest.raises(TimeoutError):
        asyncio.run(say(stuck))
