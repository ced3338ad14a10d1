"""A node on Flower: it fetches messages from the superlink and answers them in its own process.

Flower's supernode starts a Python process for every message, with code from the network. Here only data come over the
network, and the process keeps its imports and data.
"""

import contextlib
import hashlib
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.fleet.agreed.waiting import EVERY_SECONDS, passed, waiting
from atoll.fleet.flower.guard import UNANNOUNCED
from atoll.fleet.flower.presence import UNKNOWN, PresenceLink, client_of, linked, refusal
from atoll.fleet.flower.wire import (
    FAILED,
    PARTS_OF_A_TASK,
    TOO_LARGE,
    insist,
    is_noise,
    join_parts,
    make_reply,
    most_of,
    names_of,
    pack,
    prepare,
    read_task,
    status_of,
    tls_fault,
)
from atoll.fleet.folder.certificates import is_shared, read_private_key, require_flower, require_valid
from atoll.fleet.folder.configuration import NodeConfiguration
from atoll.support.errors import InputError, RunError
from atoll.support.files import make_folder
from atoll.support.lock import locked

if TYPE_CHECKING:
    from flwr.app import Message

Answer = Callable[[str, bytes], bytes]
"""Maps a task's name and payload to a reply; if it raises, the server only learns that it failed."""

_POLL_SECONDS = 0.2
_JITTER = random.Random()
_IDLE_SECONDS = 1.0
# The server uploads a message's parts right after it; after this long it must have died.
_SENDING_SECONDS = 60.0
# Once the node is known; garbled calls are repeated.
_insist = partial(insist, again=is_noise)


def serve(configuration: NodeConfiguration, answer: Answer, tell: Callable[[str], None]) -> None:
    """Answer the server's tasks until interrupted, whether or not the server is reachable.

    Args:
        tell: receives lines for the node's owner: when the server is reached, and for every failed task.
    """
    require_flower()
    key, authority = read_private_key(configuration.key), require_valid(configuration.authority)
    if is_shared(configuration.key):
        tell(f"warning: {configuration.key}: others on this machine may read it, and be this node; chmod 600 it")
    state = configuration.folder / "state"
    make_folder(state, 0o700)
    prepare(state)
    with _only_one(configuration, state), client_of(configuration, key, authority) as client:
        answered = Answered(answer)
        while True:  # a superlink that lost its database knows the key, but not the number
            with linked(configuration, client, key, state / "node-id", tell) as link:
                _answer_all(configuration, link, answered, tell)


@contextlib.contextmanager
def _only_one(configuration: NodeConfiguration, state: Path) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(state))
        except InputError as error:
            raise InputError(f"{configuration.key}: another process on this machine is this node already") from error
        yield


def _answer_all(
    configuration: NodeConfiguration, link: PresenceLink, answer: Answer, tell: Callable[[str], None]
) -> None:
    """Fetch and answer messages one by one, until the superlink does not know the node."""
    state = _State(configuration)
    with waiting(tell, state.say):
        while True:
            began = time.monotonic()
            try:
                asked = _receive(link)
                state.note(is_away=False, is_work=asked is not None)
                if asked is not None:
                    _send(link, asked, _reply_to(asked, answer, configuration, tell), began)
                    state.note(is_away=False, is_work=True)
                    continue
            except Exception as error:
                if status_of(error) == UNKNOWN:  # the number, or the key: signing on shows which
                    return
                # Otherwise the server is away, or has ended the message's run: ask again.
                if not is_noise(error) and status_of(error) is None:
                    if tls_fault(error) is not None:
                        raise RunError(refusal(configuration, error)) from error
                    raise
                state.note(is_away=True)
            time.sleep(_pause(time.monotonic() - state.since))


class _State:
    """What a node waits for, and since when."""

    def __init__(self, configuration: NodeConfiguration) -> None:
        self._names = f"{configuration.name}: ", configuration.server
        self._is_away, self.since = False, time.monotonic()

    def note(self, is_away: bool, is_work: bool = False) -> None:
        if is_work or is_away != self._is_away:
            self._is_away, self.since = is_away, time.monotonic()

    def say(self) -> str:
        if time.monotonic() - self.since < EVERY_SECONDS:
            return ""
        name, server = self._names
        what = f"{server} has not answered" if self._is_away else f"connected to {server}, waiting for tasks"
        return f"{name}{what} for {passed(self.since)}"


def _pause(idle: float) -> float:
    """Return the jittered time before the next request; the superlink itself lets callers wait."""
    return (_POLL_SECONDS if idle < 30 else _IDLE_SECONDS) * _JITTER.uniform(0.8, 1.2)


def _receive(link: PresenceLink) -> "Message | None":
    """Return the next complete message, or None; it is not confirmed, so whoever restarts before it answers gets it."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.message_pb2 import PullObjectRequest
    from flwr.proto.node_pb2 import Node

    node = Node(node_id=link.node_id)
    pulled = link.client.PullMessages(PullMessagesRequest(node=node))
    if not pulled.messages_list:
        return None
    metadata, parts = pulled.messages_list[0].metadata, dict[str, bytes]()
    until = time.monotonic() + min(metadata.ttl, _SENDING_SECONDS)
    for name in names_of(pulled.message_object_trees[0], PARTS_OF_A_TASK):
        request = PullObjectRequest(node=node, run_id=metadata.run_id, object_id=name)
        while not (part := _insist(partial(link.client.PullObject, request), until)).object_available:
            if time.monotonic() > until or not part.object_found:
                return None
            time.sleep(_POLL_SECONDS)  # the server is still uploading it
        parts[name] = part.object_content
    try:
        return join_parts(metadata.message_id, parts)
    except ValueError:
        return None


def _reply_to(
    asked: "Message", answer: Answer, configuration: NodeConfiguration, tell: Callable[[str], None]
) -> bytes | int:
    """Return the answer, or why there is none; errors are logged only here."""
    try:
        task, payload = read_task(asked)
        began = time.monotonic()
        with waiting(tell, lambda: f"{configuration.name}: at work on {task!r:.40} for {passed(began)}"):
            reply = answer(task, payload)
    except Exception as error:
        tell(f"{configuration.name}: a task failed: {type(error).__name__}: {error}")
        return FAILED
    if len(reply) > configuration.max_mib * 2**20:
        tell(f"{configuration.name}: a reply is longer than max_mib = {configuration.max_mib} allows")
        return TOO_LARGE
    if len(reply) > (most := most_of(asked)):
        tell(f"{configuration.name}: a reply of {len(reply)} bytes is longer than the server takes, {most}")
        return TOO_LARGE
    return reply


def _send(link: PresenceLink, asked: "Message", reply: bytes | int, began: float) -> None:
    """Send a reply while the server waits for it; `began` is the time of the request (`time.monotonic`).

    A restarted superlink has forgotten the announced parts, so they are announced again.
    """
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.proto.node_pb2 import Node

    until, seconds = began + asked.metadata.ttl, time.monotonic() - began
    if seconds >= asked.metadata.ttl:
        return
    packed, node = pack(make_reply(asked, reply, seconds)), Node(node_id=link.node_id)
    request = PushMessagesRequest(node=node, messages_list=[packed.message], message_object_trees=[packed.tree])

    def push() -> None:
        answer = _insist(partial(link.client.PushMessages, request), until)
        for name in answer.objects_to_push:
            part = PushObjectRequest(
                node=node, run_id=asked.metadata.run_id, session_id=answer.session_id, object_id=name,
                object_content=packed.parts[name],
            )  # fmt: skip
            _insist(partial(link.client.PushObject, part), until)

    try:
        push()
    except Exception as error:
        if status_of(error) != UNANNOUNCED:
            raise
        push()


class Answered:
    """Answers questions, and keeps the latest answers; for one thread.

    A question that comes again, since its answer was lost on the way, gets the same one: so nothing is trained, charged
    to a privacy budget or counted twice when a superlink dies, and a secure sum goes on.
    """

    def __init__(self, answer: Answer, kept: int = 8, most_bytes: int = 2**26) -> None:
        """Let `answer` map a task's name and payload to a reply; keep the latest, within these limits."""
        self._answer, self._kept, self._most_bytes = answer, kept, most_bytes
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    def __call__(self, task: str, payload: bytes) -> bytes:
        """Return the answer to a task; calls differ in their nonces, so that equal payloads are one call."""
        key = hashlib.sha256(task.encode() + b"\0" + payload).digest()
        if key not in self._answers:
            self._answers[key] = self._answer(task, payload)
            while len(self._answers) > 1 and self._is_too_much():
                self._answers.popitem(last=False)
        return self._answers[key]

    def _is_too_much(self) -> bool:
        return len(self._answers) > self._kept or sum(map(len, self._answers.values())) > self._most_bytes
