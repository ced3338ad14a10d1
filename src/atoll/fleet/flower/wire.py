"""Tasks and replies as Flower's messages, and its HTTP calls; only names that flwr 1.41 and 1.42 have are used.

A message holds one record with the task's name and what one node alone is sent, and one with the payload, so that the
payload that several nodes are sent is stored once. A reply holds one record of bytes, or a number that says why there
is none.
"""

import contextlib
import logging
import os
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.fleet.agreed.transport import Failure

if TYPE_CHECKING:
    from flwr.app import Message, Metadata
    from flwr.proto.message_pb2 import ObjectTree

_Result = TypeVar("_Result")

TASK, PAYLOAD, REPLY = "atoll.task", "atoll.payload", "atoll.reply"
FAILED, TOO_LARGE = 2, 1001  # the first is Flower's own
"""Why a node sends no reply: its handler raised, or the reply is longer than allowed."""

# A message, its content, and its two records.
PARTS_OF_A_TASK = 4
BROKEN = 500
"""What Flower answers if its database cannot be written, among other things."""
_TRANSIENT = (BROKEN, 502, 503, 504)
# What OpenSSL says of a side that speaks plaintext.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def prepare(home: Path) -> None:
    """Set what Flower reads when it is imported: no telemetry, no update check, no installing, its files in `home`."""
    os.environ.update(environment(home))
    # Its log would mix with ours; what matters comes as an exception.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def environment(home: Path) -> dict[str, str]:
    """Return the variables of `prepare`; machines on loopback are never asked for through a proxy."""
    direct = [word for word in os.environ.get("NO_PROXY", "").split(",") if word]
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(home),
        "NO_PROXY": ",".join(dict.fromkeys([*direct, "127.0.0.1", "localhost", "::1"])),
    }


def make_task(
    run_id: int, node_id: int, task: str, payload: bytes, seconds: float, most: int, head: bytes = b""
) -> "Message":
    """Return the message of a task, which is dropped after `seconds`; its reply may have `most` bytes.

    `head` is for this node alone.

    Its identifier is the digest of its content, so a number that nobody can guess keeps other nodes from answering it.
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
    """Return the message of a reply, or of the number that says why there is none, so many seconds after it was asked.

    Its times are on the clock of who asked, so that it does not matter if the clocks are apart.
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
    """Return a message's task, and its head with the payload after it.

    Raises:
        ValueError: it is another's message.
    """
    try:
        task, head = message.content[TASK]["name"], message.content[TASK]["head"]
        payload = message.content[PAYLOAD][""]
    except (KeyError, TypeError) as error:
        raise ValueError("a message that is not Atoll's") from error
    if not isinstance(task, str) or not isinstance(head, bytes) or not isinstance(payload, bytes):
        raise ValueError("a message that is not Atoll's")
    return task, head + payload


def most_of(message: "Message") -> int:
    """Return how many bytes the reply to a message may have."""
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
    """A message as it travels: without its content, the identifiers of its parts, and the parts by identifier."""

    message: Any
    tree: "ObjectTree"
    parts: Mapping[str, bytes]


def pack(message: "Message") -> WireContent:
    """Return a message as it travels, and give it its identifier, which is the digest of its content."""
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
    """Return the identifiers in a tree, but no more than one over what is allowed."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    ids = []
    for part in iterate_object_tree(tree):
        ids.append(part.object_id)
        if len(ids) > most:
            break
    return ids


def join_parts(identifier: str, parts: Mapping[str, bytes]) -> "Message":
    """Return the message that has these parts.

    Raises:
        ValueError: they do not make a message.
    """
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    try:
        message = inflate_object_from_contents(identifier, dict(parts))
    except Exception as error:  # whatever Flower makes of what a node sent
        raise ValueError("not a message") from error
    if not isinstance(message, Message):
        raise ValueError("not a message")
    message.metadata.__dict__["_message_id"] = identifier
    return message


def metadata_of(message: Any) -> "Metadata":
    """Return the metadata of a message as it travels."""
    from flwr.common.serde import message_from_proto

    return message_from_proto(message).metadata


def status_of(error: Exception) -> int | None:
    """Return the HTTP status that a call failed with, if it was one."""
    import httpx

    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None


def is_transient(error: Exception) -> bool:
    """Whether a call may succeed later: the network or a server was away, and no certificate is to blame."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _TRANSIENT
    return isinstance(error, httpx.TransportError) and tls_fault(error) is None


def is_noise(error: Exception) -> bool:
    """Whether a call may succeed later, to a side that has shown its certificate before.

    Of bytes that were changed on the way OpenSSL may say what it says of a side that speaks no TLS.
    """
    import httpx

    misread = any(_reason(each) in _NO_TLS for each in _causes(error))
    return is_transient(error) or (isinstance(error, httpx.TransportError) and misread)


def tls_fault(error: BaseException | None) -> str | None:
    """Return what is wrong with the other side's certificate or protocol, if that is what a call failed of.

    A connection that is cut while it is being encrypted is none: the network was away.
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
    """Return a call's result, trying again while the other side is away, up to a time of `time.monotonic`.

    `again` tells which failures are of that kind.

    Raises:
        httpx.HTTPError: the last failure.
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
    """Call `beat` every so many seconds in another thread; it goes on while the other side is away."""
    import threading

    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(seconds):
            with contextlib.suppress(Exception):  # the calls of the main thread meet the same and tell it
                beat()

    thread = threading.Thread(target=run, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=10)
