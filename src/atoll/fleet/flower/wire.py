"""Tasks and replies as Flower messages, and HTTP calls; uses only names that exist in flwr 1.41 and 1.42.

A message holds one record with the task's name and the part for one node, and one with the payload, so that a payload
for several nodes is stored once. A reply holds one record of bytes, or a code that says why there is none.
"""

import contextlib
import logging
import os
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.fleet.agreed.transport import Failure

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.proto.message_pb2 import ObjectTree

_Result = TypeVar("_Result")

TASK, PAYLOAD, REPLY = "atoll.task", "atoll.payload", "atoll.reply"
FAILED, TOO_LARGE = 2, 1001  # the first one is set by Flower
"""Why a node sends no reply: its handler raised an error, or the reply is too large."""

_BEAT_AGAIN_SECONDS = 1.0
# A message, its content, and its two records.
PARTS_OF_A_TASK = 4
BROKEN = 500
"""Flower's answer if its database cannot be written, among other failures."""
_TRANSIENT = (BROKEN, 502, 503, 504)
# OpenSSL's error for a side that speaks plaintext.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def prepare(home: Path, *own: str) -> None:
    """Set variables before Flower is imported: no telemetry, update checks or installations, files in `home`."""
    os.environ.update(environment(home, *own))
    # Its log would mix with ours; what matters is raised as an exception.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def environment(home: Path, *own: str) -> dict[str, str]:
    """Return the variables of `prepare`; calls to loopback and one's `own` addresses never go through a proxy."""
    told = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    direct = ",".join(dict.fromkeys(filter(None, [*told.split(","), "127.0.0.1", "localhost", "::1", *own])))
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(home),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), direct),  # where both are set, the first counts
    }


def make_task(
    run_id: int, node_id: int, task: str, payload: bytes, seconds: float, most: int, head: bytes = b""
) -> "Message":
    """Return a task's message, which expires after `seconds`; its reply may have `most` bytes.

    `head` is the part for this node alone. The message's identifier is the digest of its content; a random number in it
    keeps other nodes from answering.
    """
    from flwr.app import ConfigRecord, Metadata, RecordDict
    from flwr.app.message import make_message
    from flwr.common.constant import SUPERLINK_NODE_ID

    own = ConfigRecord({"name": task, "number": secrets.token_bytes(16), "head": head})
    content = RecordDict({TASK: own, PAYLOAD: ConfigRecord({"": payload})})
    metadata = Metadata(
        run_id=run_id, message_id="", src_node_id=SUPERLINK_NODE_ID, dst_node_id=node_id, reply_to_message_id="",
        group_id=str(most), created_at=time.time(), ttl=seconds, message_type="query",
    )  # fmt: skip
    return make_message(metadata=metadata, content=content)


def make_reply(asked: "Message", reply: bytes | int, seconds: float) -> "Message":
    """Return a reply's message, or that of a code for its absence, this many seconds after the request.

    Its times refer to the caller's clock, so clocks need not agree.
    """
    from flwr.app import ConfigRecord, Error, Metadata, RecordDict
    from flwr.app.message import make_message

    to = asked.metadata
    metadata = Metadata(
        run_id=to.run_id, message_id="", src_node_id=to.dst_node_id, dst_node_id=to.src_node_id,
        reply_to_message_id=to.message_id, group_id=to.group_id, created_at=to.created_at + seconds,
        ttl=to.ttl - seconds, message_type=to.message_type,
    )  # fmt: skip
    if isinstance(reply, int):
        return make_message(metadata=metadata, error=Error(reply, ""))
    return make_message(metadata=metadata, content=RecordDict({REPLY: ConfigRecord({"": reply})}))


def read_task(message: "Message") -> tuple[str, bytes]:
    """Return a message's task, and its head followed by the payload."""
    with contextlib.suppress(KeyError, TypeError):
        task, head = message.content[TASK]["name"], message.content[TASK]["head"]
        payload = message.content[PAYLOAD][""]
        if isinstance(task, str) and isinstance(head, bytes) and isinstance(payload, bytes):
            return task, head + payload
    raise ValueError("a message that is not Atoll's")


def most_of(message: "Message") -> int:
    """Return the largest size of the reply to a message."""
    told = message.metadata.group_id
    return int(told) if told.isascii() and told.isdigit() else 0


def read_reply(message: "Message") -> bytes | Failure:
    """Return a reply's bytes, or why there are none; anything else counts as ``failed``."""
    if not message.has_content():
        return Failure("too_large" if message.error.code == TOO_LARGE else "failed")
    try:
        reply = message.content[REPLY][""]
    except (KeyError, TypeError):
        return Failure("failed")
    return reply if isinstance(reply, bytes) else Failure("failed")


@dataclass(frozen=True)
class WireContent:
    """A message as sent: its envelope, the identifiers of its parts, and the parts by identifier."""

    message: Any
    tree: "ObjectTree"
    parts: Mapping[str, bytes]


def pack(message: "Message") -> WireContent:
    """Return a message as sent, and set its identifier, the digest of its content."""
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        tree = get_object_tree(message)
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    return WireContent(message_to_proto(remove_content_from_message(message)), tree, parts)


def names_of(tree: "ObjectTree", most: int) -> list[str]:
    """Return the identifiers in a tree, at most one more than allowed."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    return [part.object_id for part in islice(iterate_object_tree(tree), most + 1)]


def join_parts(identifier: str, parts: Mapping[str, bytes]) -> "Message":
    """Return the message with these parts."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    try:
        message = inflate_object_from_contents(identifier, dict(parts))
    except Exception as error:  # Flower may raise anything for what a node sent
        raise ValueError("not a message") from error
    if not isinstance(message, Message):
        raise ValueError("not a message")
    message.metadata.__dict__["_message_id"] = identifier
    return message


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of a failed call, if it had one."""
    import httpx

    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None


def is_transient(error: Exception) -> bool:
    """Return whether a call may succeed later: the network or a server was away, and no certificate was at fault."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _TRANSIENT
    return isinstance(error, httpx.TransportError) and tls_fault(error) is None


def is_noise(error: Exception) -> bool:
    """Return whether a call may succeed later, to a side that has shown its certificate before.

    For garbled bytes OpenSSL may report the same as for a side that does not speak TLS.
    """
    import httpx

    misread = any(_reason(each) in _NO_TLS for each in _causes(error))
    return is_transient(error) or (isinstance(error, httpx.TransportError) and misread)


def tls_fault(error: BaseException | None) -> str | None:
    """Return what is wrong with the other side's certificate or protocol, if that made a call fail.

    A connection cut during the handshake does not count: the network was away.
    """
    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return each.verify_message
        if (reason := _reason(each)) in _NO_TLS:
            return reason
    return None


def _reason(error: BaseException) -> str | None:
    return getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def insist(
    call: Callable[[], _Result], until: float, pause: float = 0.5, again: Callable[[Exception], bool] = is_transient
) -> _Result:
    """Return a call's result, retrying while the other side is away, until a `time.monotonic` time.

    `again` decides which failures are retried.
    """
    while True:
        try:
            return call()
        except Exception as error:
            if not again(error) or time.monotonic() + pause > until:
                raise
        time.sleep(pause)


@contextlib.contextmanager
def beating(beat: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `beat` periodically in another thread, and soon again while the other side is away."""
    import threading

    is_over = threading.Event()

    def run() -> None:
        pause = seconds
        while not is_over.wait(pause):
            pause = min(seconds, _BEAT_AGAIN_SECONDS)
            with contextlib.suppress(Exception):  # calls in the main thread meet the same failure and report it
                beat()
                pause = seconds

    thread = threading.Thread(target=run, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=10)
