"""What Flower's superlink knows about nodes and messages, for the guard in front; the only access to its state."""

import contextlib
import sqlite3
import time
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from atoll.fleet.flower.bodies import Message
from atoll.fleet.flower.guard import PARTS_OF_A_REPLY, GuardedReply, GuardedRequest
from atoll.fleet.flower.wire import names_of

_Request = TypeVar("_Request")

# Messages with an expected reply and complete parts.
_WHOLE = """
WITH RECURSIVE part(message_id, object_id) AS (
    SELECT message_id, message_id FROM message_ins WHERE created_at + ttl > :now
    AND NOT EXISTS (SELECT 1 FROM message_res WHERE reply_to_message_id = message_ins.message_id)
    UNION SELECT part.message_id, child_id FROM part JOIN object_children ON parent_id = part.object_id
), whole AS (
    SELECT message_id FROM part LEFT JOIN objects USING (object_id)
    GROUP BY message_id HAVING min(coalesce(is_available, 0)) = 1
)
"""
_READY = _WHOLE + "SELECT DISTINCT dst_node_id FROM message_ins WHERE message_id IN (SELECT message_id FROM whole)"
_IS_WHOLE = """
WITH RECURSIVE part(object_id) AS (
    SELECT :reply UNION SELECT child_id FROM part JOIN object_children ON parent_id = part.object_id
)
SELECT min(is_available) FROM part JOIN objects USING (object_id)
"""
_GIVE_AGAIN = (
    _WHOLE + "UPDATE message_ins SET delivered_at = '' WHERE dst_node_id = :node AND delivered_at <> '' "
    "AND message_id IN (SELECT message_id FROM whole)"
)


class FlowerLedger:
    """See `guard.CallLedger`."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._state = app.state.linkstate_factory.state()

    def node_of(self, scope: Message) -> int | None:
        """Return the node whose registered key signed a request's headers, by Flower's own check."""
        from fastapi import HTTPException, Request
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
        from flwr.superlink.routers.fleet.node_auth import authenticate_node

        request = Request({**scope, "app": self._app, "state": {}})
        with contextlib.suppress(KeyError, ValueError, HTTPException):
            key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            node: int | None = self._state.get_node_id_by_public_key(key)
            if node is not None:
                request.state.protobuf_request = ActivateNodeRequest(public_key=key)
                authenticate_node(request)
                return node
        return None

    def asked(self, identifier: str) -> GuardedRequest | None:
        """Return the message with this identifier, if its reply is still expected."""
        from flwr.supercore.utils import int64_to_uint64

        row = self._state.get_valid_message_ins(identifier)
        return None if row is None else GuardedRequest(int64_to_uint64(row["dst_node_id"]), int(row["group_id"]))

    def forget(self, messages: Sequence[str], replies: Sequence[str]) -> None:
        """Delete messages and their replies."""
        self._state.delete_messages(set(messages))
        for identifier in (*messages, *replies):
            self._state.object_store.delete(identifier)

    def ready(self) -> set[int]:
        """Return the nodes with a complete message."""
        from flwr.supercore.utils import int64_to_uint64
        from sqlalchemy import text

        with self._state.session() as session:
            return {int64_to_uint64(node) for (node,) in session.execute(text(_READY), {"now": time.time()})}

    def give_again(self, node: int) -> None:
        """Deliver messages to a node again that it has not answered: it was cut off, or killed.

        Incomplete messages are excluded: a server that died while sending one would block the node.
        """
        from flwr.supercore.utils import uint64_to_int64
        from sqlalchemy import text

        with self._state.session() as session:
            session.execute(text(_GIVE_AGAIN), {"node": uint64_to_int64(node), "now": time.time()})

    def drop_unless_whole(self, reply: str) -> bool:
        """Delete an announced reply whose parts will not come, so that its message is given again; return if it was."""
        from sqlalchemy import text

        with self._state.session() as session:
            if session.execute(text(_IS_WHOLE), {"reply": reply}).scalar() != 0:  # None: it was read
                return False
            session.execute(text("DELETE FROM message_res WHERE message_id = :reply"), {"reply": reply})
        self._state.object_store.delete(reply)
        return True

    def forget_all(self) -> None:
        """Delete all messages; registered nodes are kept."""
        for run in self._state.get_run_info():
            self._state.cleanup_run(run.run_id)
        self._state.object_store.clear()

    def read_reply(self, body: bytes) -> GuardedReply | None:
        """Return the reply that a push-messages call announces; None if it is not exactly one."""
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.fleet_pb2 import PushMessagesRequest

        request = _parsed(PushMessagesRequest, body)
        if request is None or (len(request.messages_list), len(request.message_object_trees)) != (1, 1):
            return None
        told, tree = request.messages_list[0].metadata, request.message_object_trees[0]
        if tree.object_id != told.message_id or not told.reply_to_message_id:
            return None
        to_server, parts = told.dst_node_id == SUPERLINK_NODE_ID, tuple(names_of(tree, PARTS_OF_A_REPLY))
        return GuardedReply(told.message_id, told.src_node_id, to_server, told.reply_to_message_id, parts)

    def read_part(self, body: bytes) -> tuple[str, int] | None:
        """Return the identifier and bytes of a push-object call."""
        from flwr.proto.message_pb2 import PushObjectRequest

        request = _parsed(PushObjectRequest, body)
        return None if request is None else (request.object_id, len(request.object_content))


def compact(database: Path) -> None:
    """Return deleted space to the disk."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _parsed(kind: type[_Request], body: bytes) -> Any:
    request: Any = kind()
    try:
        request.ParseFromString(body)
    except Exception:  # the parser may raise anything
        return None
    return request
