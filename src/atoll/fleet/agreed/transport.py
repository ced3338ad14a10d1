"""What a fleet is: nodes that carry out registered tasks, wherever they are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Properties = Mapping[str, str | int | float]
"""What is certain about a node: ``{"client": 3}``, or ``{"clients": "0,4"}`` if it is several; nothing private.

``public_key`` is a line as ssh-keygen writes it, where nodes are known by theirs. ``samples``, where its owner agreed
on them, are those of each of its clients: ``{"clients": "0,4", "samples": "9,7"}``.
"""

Reason = Literal["late", "gone", "failed", "too_large"]


@dataclass(frozen=True)
class Failure:
    """Why there is no reply of a node.

    It holds no text of the node's own: an exception's message may tell what is private.

    Attributes:
        reason: ``late``: none by the timeout; ``gone``: the node is not there; ``failed``: its handler raised;
            ``too_large``: the reply was refused unread.
    """

    reason: Reason


def clients_of(properties: Properties) -> tuple[int, ...]:
    """Return the clients that a node stands for; empty if its transport does not know.

    >>> clients_of({"client": 3}), clients_of({"clients": "0,4"})
    ((3,), (0, 4))
    """
    listed = str(properties.get("clients", properties.get("client", "")))
    return tuple(int(client) for client in listed.split(",") if client)


def samples_of(properties: Properties) -> dict[int, int]:
    """Return the samples of each client that a node's owner agreed on; empty if there is no such agreement.

    >>> samples_of({"clients": "0,4", "samples": "40,70"}), samples_of({"client": 3})
    ({0: 40, 4: 70}, {})
    """
    listed = str(properties.get("samples", ""))
    samples = [int(each) for each in listed.split(",") if each]
    return dict(zip(clients_of(properties), samples, strict=True)) if samples else {}


class Fleet(Protocol):
    """Nodes that carry out tasks by name; safe to call from several threads."""

    def nodes(self) -> dict[str, Properties]:
        """Return the nodes that are there now, by name."""
        ...

    def allow(self, most: int) -> None:
        """Take no reply from now on that has more bytes; one fails as ``too_large``."""
        ...

    def call(
        self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Send a task to nodes; yield one reply or failure a node, as they come, the last by `timeout` seconds.

        Args:
            heads: what each node alone is sent, by its name; one that is not there fails as ``gone``.
            task: name of a registered handler, which is given a node's head and then the payload.
            payload: what all of them are sent.
            timeout: seconds from now.
        """
        ...

    def close(self) -> None:
        """Release what it holds; the nodes stay."""
        ...
