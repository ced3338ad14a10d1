"""A fleet on Flower: tasks are messages through its superlink, pushed and pulled here rather than by its strategies."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from atoll.fleet.configuration import FleetConfiguration, RegisteredNode, read_fleet
from atoll.fleet.flower.calls import begin_task, forget, is_task_lost, list_nodes, register_nodes, runtime_client
from atoll.fleet.flower.guard import OVERHEAD, PARTS_OF_A_REPLY
from atoll.fleet.flower.superlink import Superlink
from atoll.fleet.flower.wire import (
    TOO_LARGE,
    beating,
    insist,
    is_transient,
    join_parts,
    make_task,
    names_of,
    pack,
    read_reply,
)
from atoll.fleet.messages import MOST_HEADER_BYTES
from atoll.fleet.transport import Failure, Properties, Reason
from atoll.support.errors import RunError

if TYPE_CHECKING:
    from flwr.supercore.runtime import RuntimeHttpClient

POLL_SECONDS = 0.2
_BEAT_SECONDS = 10.0
# How long a call outlasts a superlink that is away.
_PATIENCE = 60.0
# Tasks that are answered with numbers alone; every other reply may be as long as a client's result.
_NUMBERS, _MOST_NUMBERS = ("describe", "losses"), MOST_HEADER_BYTES + OVERHEAD

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class _Task:
    """Flower's run and task, which messages are sent by."""

    run_id: int
    client: "RuntimeHttpClient"


@dataclass
class _Arriving:
    """A reply whose parts are not all there yet."""

    identifier: str
    missing: list[str]
    parts: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


@dataclass(frozen=True)
class _Asked:
    """What was sent by a task and is not answered yet: nodes and replies by the message's identifier."""

    task: _Task
    names: dict[str, str]
    most: int
    arriving: dict[str, _Arriving] = field(default_factory=dict)


class FlowerFleet:
    """The nodes of a fleet's folder, reached through a superlink that runs while this is entered.

    A node's name and its clients are those that its key has in ``fleet.toml``; what it says of itself changes neither.
    A superlink that dies is started again, and messages under way are in its database. If it stays away so long that
    Flower gives our task up, the next call begins another one.
    """

    def __init__(self, configuration: FleetConfiguration, tell: Callable[[str], None] = lambda _: None) -> None:
        """Note whose fleet it is; nothing is started. `tell` is given what its operator should know."""
        self.configuration = configuration
        self.superlink = Superlink(configuration, tell)
        self._most = configuration.max_mib * 2**20
        self._properties = {node.name: _properties_of(node) for node in configuration.nodes}
        self._names = dict[int, str]()
        self._lock = threading.Lock()
        self._task: _Task | None = None
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the superlink and let it accept the nodes' keys.

        Raises:
            InputError: a certificate has expired, or the port is in use.
            RunError: the superlink does not start.
        """
        with contextlib.ExitStack() as held:
            held.enter_context(self.superlink)
            until = time.monotonic() + _PATIENCE  # it may die at once, and is started again
            self._names = insist(lambda: register_nodes(self.configuration), until)
            self.superlink.open()
            held.callback(self._end_task)
            held.enter_context(beating(self._beat, _BEAT_SECONDS))
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the task and the superlink."""
        self.close()

    def close(self) -> None:
        """End the task and the superlink; the nodes go on asking for it."""
        self._held.close()

    def allow(self, most: int) -> None:
        """Take no reply from now on that has more bytes; nodes are not let send more to the superlink."""
        self._most = min(most, self.configuration.max_mib * 2**20)

    def nodes(self) -> dict[str, Properties]:
        """Return the nodes that are there now, with the client that each is (``clients``, with commas, if several)."""
        return {name: self._properties[name] for name in self._online(time.monotonic() + _PATIENCE)}

    def call(
        self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Send a task to nodes; yield one reply or failure a node, as they come, the last by `timeout` seconds.

        A node that dies fails as ``gone`` once Flower notices, within 90 seconds, or as ``late`` if that is sooner.

        Raises:
            RunError: the payload is longer than the fleet allows, or the superlink cannot be kept running.
        """
        until = time.monotonic() + timeout
        if len(payload) + max(map(len, heads.values()), default=0) > self.configuration.max_mib * 2**20:
            raise RunError(f"a task takes more bytes than max_mib = {self.configuration.max_mib} in fleet.toml allows")
        try:
            there = self._online(until)
            present = {name: head for name, head in heads.items() if name in there}
            asked = self._with_task(lambda now: self._push(now, present, task, payload, until), until)
        except Exception as error:
            self.superlink.require_up()
            if not is_transient(error) and time.monotonic() < until:  # else Flower takes it no more
                raise
            yield from ((name, Failure("late")) for name in heads)
            return
        yield from ((name, Failure("gone")) for name in heads if name not in asked.names.values())
        sent = list(asked.names)
        try:
            while asked.names and time.monotonic() < until:
                yield from self._pull(asked)
                if asked.names:
                    time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
            yield from ((name, Failure("late")) for name in asked.names.values())
        finally:
            with contextlib.suppress(Exception):  # what stays is deleted when the run ends
                forget(self.configuration, sent)

    def _online(self, until: float) -> list[str]:
        from flwr.proto.runtime_pb2 import GetNodesRequest

        reply = self._with_task(lambda task: task.client.GetNodes(GetNodesRequest()), until)
        if any(info.node_id not in self._names for info in reply.nodes):
            insist(self._learn_keys, until)
        return sorted(self._names[info.node_id] for info in reply.nodes if info.node_id in self._names)

    def _learn_keys(self) -> None:
        """Learn of keys that have changed in ``fleet.toml`` since, whoever has registered them (`atoll fleet rotate`).

        A node keeps the clients that it had, for a run is planned with them.
        """
        known = read_fleet(self.configuration.folder)
        numbers = {info.node_id: name for name, info in list_nodes(known).items()}
        self._names = {number: name for number, name in numbers.items() if name in self._properties}

    def _with_task(self, call: Callable[[_Task], _Result], until: float) -> _Result:
        """Return what a call makes of the task, begun again if Flower has given it up."""

        def attempt() -> _Result:
            self.superlink.require_up()
            with self._lock:
                if self._task is None:
                    run_id, token = begin_task(self.configuration)
                    self._task = _Task(run_id, runtime_client(self.configuration, token))
                task = self._task
            try:
                return call(task)
            except Exception as error:
                if not is_task_lost(error):
                    raise
            self._drop(task)
            return attempt()

        return insist(attempt, until)

    def _drop(self, task: _Task) -> None:
        with self._lock:
            if self._task is task:
                self._task = None

    def _push(self, task: _Task, heads: Mapping[str, bytes], name_of_task: str, payload: bytes, until: float) -> _Asked:
        """Send a task to nodes that are there; the payload goes to the superlink once."""
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.proto.node_pb2 import Node
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest

        most = min(self._most, _MOST_NUMBERS) if name_of_task in _NUMBERS else self._most
        if not heads:
            return _Asked(task, {}, most)
        numbers = {name: number for number, name in self._names.items()}
        seconds = max(until - time.monotonic(), 0.1)
        packed = [
            pack(make_task(task.run_id, numbers[name], name_of_task, payload, seconds, most, head))
            for name, head in heads.items()
        ]
        request = PushAppMessagesRequest(
            messages_list=[each.message for each in packed], message_object_trees=[each.tree for each in packed]
        )
        answer = task.client.PushMessages(request)
        parts = {identifier: part for each in packed for identifier, part in each.parts.items()}
        for identifier in answer.objects_to_push:
            task.client.PushObject(
                PushObjectRequest(
                    node=Node(node_id=SUPERLINK_NODE_ID), run_id=task.run_id, session_id=answer.session_id,
                    object_id=identifier, object_content=parts[identifier],
                )
            )  # fmt: skip
        return _Asked(task, {sent: name for sent, name in zip(answer.message_ids, heads, strict=True) if sent}, most)

    def _pull(self, asked: _Asked) -> Iterator[tuple[str, bytes | Failure]]:
        """Yield the replies that are there; none while the superlink is away, failures if our task is lost."""
        try:
            yield from self._pull_once(asked)
        except Exception as error:
            self.superlink.require_up()
            if is_task_lost(error):
                self._drop(asked.task)
                yield from ((name, Failure("late")) for name in asked.names.values())
                asked.names.clear()
            elif not is_transient(error):
                raise

    def _pull_once(self, asked: _Asked) -> Iterator[tuple[str, bytes | Failure]]:
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        client = asked.task.client
        waiting = [identifier for identifier in asked.names if identifier not in asked.arriving]
        if waiting:
            answer = client.PullMessages(PullAppMessagesRequest(message_ids=waiting))
            for reply, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                to, identifier = reply.metadata.reply_to_message_id, reply.metadata.message_id
                if to not in asked.names:
                    continue
                if reply.HasField("error"):
                    yield asked.names.pop(to), Failure(_reason_of(reply.error.code))
                elif len(parts := names_of(tree, PARTS_OF_A_REPLY)) > PARTS_OF_A_REPLY:
                    yield asked.names.pop(to), Failure("too_large")
                else:
                    asked.arriving[to] = _Arriving(identifier, parts)
        for to, arriving in list(asked.arriving.items()):
            if self._fetch(asked.task, arriving, asked.most + OVERHEAD):
                del asked.arriving[to]
                yield asked.names.pop(to), Failure("too_large") if arriving.missing else _joined(arriving)
                self._confirm(asked.task, arriving.identifier)

    def _fetch(self, task: _Task, arriving: _Arriving, most: int) -> bool:
        """Read the parts of a reply that are there; return whether it is whole, or longer than it may be."""
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.message_pb2 import PullObjectRequest
        from flwr.proto.node_pb2 import Node

        while arriving.missing and arriving.size <= most:
            identifier = arriving.missing[0]
            request = PullObjectRequest(node=Node(node_id=SUPERLINK_NODE_ID), run_id=task.run_id, object_id=identifier)
            reply = task.client.PullObject(request)
            if not reply.object_available:
                return False
            arriving.parts[arriving.missing.pop(0)] = reply.object_content
        return True

    def _confirm(self, task: _Task, identifier: str) -> None:
        """Let the superlink forget a reply that was read."""
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.proto.node_pb2 import Node

        request: Any = ConfirmMessageReceivedRequest(
            node=Node(node_id=SUPERLINK_NODE_ID), run_id=task.run_id, message_object_id=identifier
        )
        task.client.ConfirmMessageReceived(request)

    def _beat(self) -> None:
        """Tell Flower that we are there, or it gives the task up after a minute."""
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        if (task := self._task) is not None:
            task.client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def _end_task(self) -> None:
        from flwr.common.constant import SubStatus
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        if (task := self._task) is not None:
            with contextlib.suppress(Exception):  # what is left of it is stopped when the next one begins
                task.client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))
            task.client.close()
            self._task = None


def _properties_of(node: RegisteredNode) -> Properties:
    agreed = {} if node.samples is None else {"samples": ",".join(map(str, node.samples))}
    first, *others = node.clients
    return {"clients": ",".join(map(str, node.clients)), **agreed} if others else {"client": first, **agreed}


def _joined(arriving: _Arriving) -> bytes | Failure:
    try:
        return read_reply(join_parts(arriving.identifier, arriving.parts))
    except ValueError:
        return Failure("failed")


def _reason_of(code: int) -> Reason:
    from flwr.common.constant import ErrorCode

    if code == ErrorCode.NODE_UNAVAILABLE:
        return "gone"
    if code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE):
        return "late"
    return "too_large" if code == TOO_LARGE else "failed"
