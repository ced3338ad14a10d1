"""A fleet: nodes that carry out registered tasks, wherever they are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Properties = Mapping[str, str | int | float]
"""What is certain about a node, and not private: ``{"client": 3}``, or ``{"clients": "0,4"}`` for several.

``public_key`` is a line in ssh-keygen's format, if nodes have known keys. ``samples`` are those of each of its clients,
if agreed on: ``{"clients": "0,4", "samples": "9,7"}``.
"""

Reason = Literal["late", "gone", "failed", "too_large"]


@dataclass(frozen=True)
class Failure:
    """Why there is no reply from a node.

    It contains no text from the node, since an error message may reveal private data.

    Attributes:
        reason: ``late``: none in time; ``gone``: the node is absent; ``failed``: its handler raised an error;
            ``too_large``: the reply was rejected unread.
    """

    reason: Reason


def clients_of(properties: Properties) -> tuple[int, ...]:
    """Return a node's clients; empty if its transport does not know them."""
    listed = str(properties.get("clients", properties.get("client", "")))
    return tuple(int(client) for client in listed.split(",") if client)


def samples_of(properties: Properties) -> dict[int, int]:
    """Return the agreed samples of a node's clients; empty without an agreement."""
    samples = [int(each) for each in str(properties.get("samples", "")).split(",") if each]
    return dict(zip(clients_of(properties), samples, strict=True)) if samples else {}


class Fleet(Protocol):
    """Nodes that carry out tasks by name; thread-safe."""

    def nodes(self) -> dict[str, Properties]:
        """Return the nodes that are present, by name."""

    def allow(self, most: int) -> None:
        """Accept no larger replies from now on; they fail as ``too_large``."""

    def call(
        self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Send a task to nodes; yield one reply or failure per node as they arrive, the last within `timeout` seconds.

        Args:
            heads: the part of the message for each node alone, by name; an absent node fails as ``gone``.
            task: name of a registered handler, which receives a node's head and the payload.
        """

    def close(self) -> None:
        """Release resources; the nodes keep running."""
