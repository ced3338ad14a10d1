"""A node's presence on the superlink: connecting, signing calls, signing on and off, and why it may be rejected."""

import contextlib
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.fleet.agreed.waiting import passed, waiting
from atoll.fleet.flower.wire import beating, insist, status_of, tls_fault
from atoll.fleet.folder.configuration import NodeConfiguration
from atoll.support.errors import RunError
from atoll.support.files import write_atomically

if TYPE_CHECKING:
    from flwr.supernode.fleet_http_client import FleetHttpClient

_BEAT_SECONDS = 20.0
# Flower counts a node as gone after twice this time; long enough for a minute without network.
_INTERVAL = 45.0
_FOREVER, _AGAIN_SECONDS = float("inf"), 1.0
# How long a disconnected node may count as online, with a margin.
_GONE_SECONDS = 2 * _INTERVAL + 15
# Flower accepts times from 305 s ago to 5 s ahead: in the middle, a node's clock may be off either way.
_BACK_SECONDS = 150.0
# A smaller clock difference is not why a node is rejected.
_APART_SECONDS = _BACK_SECONDS - 10
UNKNOWN, _TAKEN = 401, 412
"""The superlink's answers to an unregistered key, and to a key whose node is already online."""
_WAITING = (
    "the server counts it as there, since it was cut off or another machine has its key; trying again for up to "
    f"{_GONE_SECONDS:.0f} s"
)


@dataclass(frozen=True)
class PresenceLink:
    """A connection on which the node is signed on."""

    client: "FleetHttpClient"
    node_id: int


def client_of(configuration: NodeConfiguration, key: Any, authority: bytes) -> "FleetHttpClient":
    """Return a connection to the superlink whose calls are signed with the node's key."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient

    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), _Signing(key)]
    return FleetHttpClient.from_server_address(configuration.server, False, authority, interceptors)


@contextlib.contextmanager
def linked(
    configuration: NodeConfiguration, client: "FleetHttpClient", key: Any, note: Path, tell: Callable[[str], None]
) -> Iterator[PresenceLink]:
    """Sign the node on, and off at the end.

    A killed node counts as online for a while, and Flower rejects another one with its key. The node stores its number
    until it has signed off, so that after a restart it goes on as its predecessor: it was never gone.
    """
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    request = ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=_INTERVAL)

    def activate() -> int:
        if note.exists():
            with contextlib.suppress(Exception):  # the server has forgotten it
                known = Node(node_id=int(note.read_text()))
                if client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=known, heartbeat_interval=_INTERVAL)).success:
                    return known.node_id
        return client.ActivateNode(request).node_id

    began = time.monotonic()
    tell(f"{configuration.name}: calling {configuration.server}")
    try:
        with waiting(tell, lambda: f"{configuration.name}: still calling {configuration.server}: {passed(began)}"):
            node_id = _insist_while_taken(activate, lambda: tell(f"{configuration.name}: {_WAITING}"))
    except Exception as error:
        raise RunError(refusal(configuration, error)) from error
    beat = SendNodeHeartbeatRequest(node=Node(node_id=node_id), heartbeat_interval=_INTERVAL)
    try:
        write_atomically(note, str(node_id).encode())
        tell(f"{configuration.name}: connected")
        with beating(lambda: client.SendNodeHeartbeat(beat), _BEAT_SECONDS):
            yield PresenceLink(client, node_id)
    finally:
        with contextlib.suppress(Exception):
            client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))
            note.unlink(missing_ok=True)


def _insist_while_taken(activate: Callable[[], int], say: Callable[[], None]) -> int:
    """Return the node's number, retrying while the server is away or still counts the node as online."""
    until = None
    while True:
        try:
            return insist(activate, _FOREVER, pause=_AGAIN_SECONDS)
        except Exception as error:
            if status_of(error) != _TAKEN or (until is not None and time.monotonic() > until):
                raise
        if until is None:
            until = time.monotonic() + _GONE_SECONDS
            say()
        time.sleep(_AGAIN_SECONDS)


def refusal(configuration: NodeConfiguration, error: Exception) -> str:
    """Return in one sentence why the server cannot be used."""
    import httpx

    if (fault := tls_fault(error)) is not None:
        return (
            f"{configuration.server}: is not the server that {configuration.authority} vouches for, or speaks no TLS "
            f"({fault})"
        )
    if isinstance(error, httpx.HTTPStatusError):
        with contextlib.suppress(KeyError, ValueError, TypeError):
            there = parsedate_to_datetime(error.response.headers["date"])
            apart = abs((there - datetime.now(UTC)).total_seconds())
            if apart > _APART_SECONDS:
                return f"{configuration.server}: this machine's clock is {apart / 60:.0f} minutes from its; set it"
        status = error.response.status_code
        why = {UNKNOWN: "its key is not registered there", _TAKEN: "another machine is this node already"}
        return f"{configuration.server}: refuses {configuration.name}; {why.get(status, f'HTTP status {status}')}"
    return f"{configuration.server}: {error}"


class _Signing:
    """Adds a node's key and a signed time to calls, as Flower does except for the time."""

    def __init__(self, key: Any) -> None:
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        self._key, self._public = key, public_key_to_bytes(key.public_key())

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Sign a call's headers."""
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.primitives.asymmetric import sign_message

        told = (datetime.now(UTC) - timedelta(seconds=_BACK_SECONDS)).isoformat()
        headers = context.request.headers
        headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = b64encode(self._public).decode()
        headers[FLEET_HTTP_SIGNATURE_HEADER] = b64encode(sign_message(self._key, told.encode())).decode()
        context.request.headers[TIMESTAMP_HEADER] = told
        return call_next(context)
