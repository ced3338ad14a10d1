"""Before a run: which nodes are there, which clients they are, and what they say of themselves."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.fleet.agreement import Agreement
from atoll.fleet.messages import ClientReport, DescribeReply, DescribeRequest, encode, most_bytes
from atoll.fleet.replies import open_reply
from atoll.fleet.transport import Failure, Fleet, clients_of
from atoll.support.environment import BITS_DEPEND_ON, package_versions
from atoll.support.errors import InputError, RunError

CLOCKS_APART_SECONDS = 3600.0
_DESCRIBING_SECONDS = 60.0
_SHOWN = 8  # clients at most that a sentence lists


@dataclass(frozen=True, eq=False)
class Joined:
    """The clients that are there.

    Attributes:
        nodes: each client's node.
        reports: what nodes say of each client.
        warnings: what the user should know, a sentence each.
    """

    nodes: dict[int, str] = field(default_factory=dict)
    reports: dict[int, ClientReport] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def samples(self) -> dict[int, int]:
        """How many samples each client says that it holds."""
        return {client: report.samples for client, report in self.reports.items()}


def wait_for_nodes(
    fleet: Fleet,
    agreement: Agreement,
    nodes: int | None,
    wait_seconds: float,
    tell: Callable[[str], None] = lambda _: None,
    poll_seconds: float = 1.0,
) -> Joined:
    """Return the nodes, once there are enough.

    Args:
        fleet: who may be there.
        agreement: what they must have in common with this side.
        nodes: how many must be there; None: those of all clients. More are never waited for than there are clients.
        wait_seconds: how long to wait for them.
        tell: is given a sentence whenever something has changed while it waits.
        poll_seconds: between two looks.

    Raises:
        InputError: two nodes are the same client, or one is a client that there is not, or another than its key says.
        RunError: too few nodes were there in time; names the clients that are missing.
    """
    until = time.monotonic() + wait_seconds
    known: dict[str, DescribeReply] = {}
    refused: dict[str, str] = {}
    warnings: dict[str, list[str]] = {}
    last = ""
    while True:
        there = fleet.nodes()
        known = {name: reply for name, reply in known.items() if name in there}
        left = max(until - time.monotonic(), 0.0)
        strangers = [name for name in there if name not in known]
        for name, reply in _describe(fleet, agreement, strangers, min(max(left, 1.0), _DESCRIBING_SECONDS)).items():
            if isinstance(reply, str):
                refused[name] = reply
                continue
            refused.pop(name, None)
            known[name], warnings[name] = reply, _warn(name, reply)
        joined = _join(known, there, agreement.clients)
        if len(joined.nodes) == agreement.clients or (nodes is not None and len(known) >= nodes):
            joined.warnings.extend(sentence for name in known for sentence in warnings[name])
            return joined
        sentence = _missing(joined, agreement.clients, {k: v for k, v in refused.items() if k in there})
        if nodes is not None:
            sentence = f"{len(known)} of fleet.nodes = {nodes} nodes are there; {sentence}"
        if time.monotonic() >= until:
            raise RunError(f"fleet.wait_seconds = {wait_seconds:g}: {sentence}")
        if sentence != last:
            tell(last := sentence)
        time.sleep(min(poll_seconds, max(until - time.monotonic(), 0.0)))


def ask_again(fleet: Fleet, agreement: Agreement, nodes: Mapping[int, str], timeout: float) -> dict[int, ClientReport]:
    """Return what nodes now say of their clients, in a run that is under way.

    Whoever gives no proper answer in time is left out, and so is what a node says of a client of another.

    Args:
        fleet: the nodes.
        agreement: what they have in common with this side.
        nodes: the node of each client.
        timeout: seconds to wait.
    """
    there = fleet.nodes()
    names = [name for name in dict.fromkeys(nodes.values()) if name in there]
    return {
        report.client: report
        for name, reply in _describe(fleet, agreement, names, timeout).items()
        if not isinstance(reply, str)
        for report in reply.clients
        if nodes.get(report.client) == name
    }


def _describe(
    fleet: Fleet, agreement: Agreement, names: Sequence[str], timeout: float
) -> dict[str, DescribeReply | str]:
    """Ask nodes what they hold; return each node's reply, or why there is none."""
    nonce = secrets.token_hex(16)
    request = encode(DescribeRequest(settings_digest=agreement.digest, nonce=nonce))
    replies = fleet.call(dict.fromkeys(names, request), "describe", b"", timeout) if names else ()
    return {name: _read(content, nonce) for name, content in replies if name in names}


def _read(content: bytes | Failure, nonce: str) -> DescribeReply | str:
    if isinstance(content, Failure):
        return content.reason
    opened = open_reply(content, DescribeReply, most_bytes({}, models=0))
    if isinstance(opened, str):
        return opened
    head, _ = opened
    return head if head.nonce == nonce else "repeated"


def _join(known: Mapping[str, DescribeReply], there: Mapping[str, Mapping[str, Any]], clients: int) -> Joined:
    """Put together which node is which client."""
    joined = Joined()
    for name, reply in known.items():
        registered = clients_of(there[name])
        for report in reply.clients:
            client = report.client
            if client >= clients:
                raise InputError(f"node {name!r} is client {client}, but data.clients = {clients}; they count from 0")
            if registered and client not in registered:
                listed = ", ".join(map(str, registered))
                raise InputError(f"node {name!r} says that it is client {client}, but its key is that of {listed}")
            if client in joined.nodes:
                raise InputError(
                    f"nodes {joined.nodes[client]!r} and {name!r} both say that they are client {client}; each client "
                    "must be one node"
                )
            joined.nodes[client], joined.reports[client] = name, report
    return joined


def _missing(joined: Joined, clients: int, refused: Mapping[str, str]) -> str:
    missing = [client for client in range(clients) if client not in joined.nodes]
    listed = ", ".join(map(str, missing[:_SHOWN])) + (f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else "")
    sentence = f"{len(joined.nodes)} of {clients} clients are there; missing: {listed}"
    words = {
        "wrong_settings": "has other settings than this experiment",
        "late": "did not answer in time",
        "gone": "is not there",
        "failed": "failed to describe itself; its own log says why",
    }
    others = [f"node {name!r} {words.get(why, f'gave no proper answer ({why})')}" for name, why in refused.items()]
    return "; ".join([sentence, *others[:_SHOWN]])


def _warn(name: str, reply: DescribeReply) -> list[str]:
    """Return what may be surprising about a run with this node."""
    warnings = []
    if abs(apart := reply.utc - time.time()) >= CLOCKS_APART_SECONDS:
        ahead = "ahead of" if apart > 0 else "behind"
        warnings.append(f"the clock of node {name!r} is {abs(apart) / 3600:.1f} hours {ahead} this machine's")
    here = package_versions()
    for package in BITS_DEPEND_ON:
        if (there := reply.versions.get(package)) != here[package]:
            warnings.append(
                f"node {name!r} has {package} {there}, here it is {here[package]}; results may differ from simulation "
                "in their last bits"
            )
    return warnings
