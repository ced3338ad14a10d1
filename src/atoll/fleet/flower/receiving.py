"""Pending tasks, and their replies as they arrive part by part."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.fleet.agreed.transport import Failure, Reason
from atoll.fleet.flower.guard import OVERHEAD, PARTS_OF_A_REPLY
from atoll.fleet.flower.wire import TOO_LARGE, join_parts, names_of, read_reply

if TYPE_CHECKING:
    from flwr.supercore.runtime import RuntimeHttpClient


@dataclass(frozen=True)
class PendingTask:
    """Flower's run and task that send messages."""

    run_id: int
    client: "RuntimeHttpClient"


@dataclass
class _Arriving:
    """A reply with missing parts."""

    identifier: str
    missing: list[str]
    parts: dict[str, bytes] = field(default_factory=dict)


@dataclass
class PendingCall:
    """Unanswered messages of a task: nodes and replies by message identifier; `superlink` is its last known process."""

    task: PendingTask
    names: dict[str, str]
    most: int
    superlink: int
    arriving: dict[str, _Arriving] = field(default_factory=dict)


def receive(asked: PendingCall) -> Iterator[tuple[str, bytes | Failure]]:
    """Yield new arrivals by node name: each complete reply, or why there is none; ``late`` if it was lost."""
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.proto.node_pb2 import Node
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
        outcome = _fetch(asked.task, arriving, asked.most + OVERHEAD)
        if outcome is not None:
            del asked.arriving[to]
            yield asked.names.pop(to), outcome
            read: Any = ConfirmMessageReceivedRequest(  # so that the superlink may delete the reply
                node=Node(node_id=SUPERLINK_NODE_ID), run_id=asked.task.run_id, message_object_id=arriving.identifier
            )
            client.ConfirmMessageReceived(read)


def lose(asked: PendingCall, identifiers: Iterable[str]) -> Iterator[tuple[str, Failure]]:
    """Wait for no reply to these messages; yield their nodes' names, as ``late``."""
    for identifier in list(identifiers):
        asked.arriving.pop(identifier, None)
        yield asked.names.pop(identifier), Failure("late")


def _fetch(task: PendingTask, arriving: _Arriving, most: int) -> bytes | Failure | None:
    """Read a reply's available parts; return it, or why there is none; None while parts are missing."""
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.proto.message_pb2 import PullObjectRequest
    from flwr.proto.node_pb2 import Node

    while arriving.missing and sum(map(len, arriving.parts.values())) <= most:
        identifier = arriving.missing[0]
        request = PullObjectRequest(node=Node(node_id=SUPERLINK_NODE_ID), run_id=task.run_id, object_id=identifier)
        reply = task.client.PullObject(request)
        if not reply.object_found:
            return Failure("late")
        if not reply.object_available:
            return None
        arriving.parts[arriving.missing.pop(0)] = reply.object_content
    return Failure("too_large") if arriving.missing else _joined(arriving)


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
