"""Before a run: which nodes are present, which clients they serve, and how they describe themselves."""

import secrets
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from atoll.fleet.agreed.agreement import Agreement
from atoll.fleet.agreed.messages import ClientReport, DescribeReply, DescribeRequest, encode, most_bytes
from atoll.fleet.agreed.randomised_response import LEAST_EPSILON
from atoll.fleet.agreed.transport import Failure, Fleet, Properties, clients_of
from atoll.fleet.agreed.waiting import passed, waiting
from atoll.fleet.server.replies import open_reply
from atoll.support.environment import BITS_DEPEND_ON, package_versions
from atoll.support.errors import RunError

CLOCKS_APART_SECONDS = 3600.0
_DESCRIBING_SECONDS, _A_NODE_SECONDS = 60.0, 3.0  # for all, and more for each: a busy superlink takes long for many
_MOST_HOURS = 999_999.9  # of clock difference that is worth a sentence
_LONGEST_PAUSE = 30.0
_SHOWN = 8  # most clients that a sentence lists
_WORDS = {
    "wrong_settings": "has other settings than this experiment",
    "not_allowed": "has other settings than this experiment, which its owner does not let the server change; its own "
    "log names them",
    "late": "did not answer in time",
    "gone": "is not there",
    "failed": "failed to describe itself; its own log says why",
}


@dataclass(frozen=True)
class Unfit:
    """Why a node cannot take part.

    Attributes:
        is_description: whether its description is impossible; otherwise the fault may be fixed, so it is waited for.
    """

    why: str
    is_description: bool = False


@dataclass(frozen=True, eq=False)
class Joined:
    """The clients that are present; `left_out` are nodes with impossible descriptions."""

    nodes: dict[int, str] = field(default_factory=dict)
    reports: dict[int, ClientReport] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    @property
    def samples(self) -> dict[int, int]:
        """Reported number of samples by client."""
        return {client: report.samples for client, report in self.reports.items()}


def wait_for_nodes(
    fleet: Fleet,
    agreement: Agreement,
    nodes: int | None,
    wait_seconds: float,
    tell: Callable[[str], None] = lambda _: None,
    poll_seconds: float = 1.0,
) -> Joined:
    """Wait until enough nodes are present, and return them.

    Args:
        nodes: required number of nodes; None: those of all clients. Never more than there are clients.

    A node with an impossible description is rejected; when the time is over, the run starts without it, if nobody else
    is missing.
    """
    began, told = time.monotonic(), ""
    until, joining = began + wait_seconds, _Joining(fleet, agreement, poll_seconds)
    with waiting(tell, lambda: f"waiting for nodes: {passed(began)} of {wait_seconds:g} s; {told}".rstrip("; ")):
        while True:
            joining.ask(max(until - time.monotonic(), 1.0))
            joined, count = joining.joined(), len(joining.known)
            is_over = time.monotonic() >= until
            are_there = len(joined.nodes) >= joining.wanted(joined, is_over) or (nodes is not None and count >= nodes)
            if count and are_there:
                joined.warnings.extend(joining.warn(joined))
                return joined
            sentence = _missing(joined, agreement.clients, joining.refused)
            if nodes is not None:
                sentence = f"{count} of fleet.nodes = {nodes} nodes are there; {sentence}"
            if is_over:
                raise RunError(f"fleet.wait_seconds = {wait_seconds:g}: {sentence}; fleet.nodes can ask for fewer")
            if sentence != told:
                told = sentence
                tell(sentence)
            time.sleep(min(poll_seconds, max(until - time.monotonic(), 0.0)))


class _Joining:
    """The present nodes: those that have described themselves, and why others are unfit."""

    def __init__(self, fleet: Fleet, agreement: Agreement, poll_seconds: float) -> None:
        self.known: dict[str, DescribeReply] = {}
        self.refused: dict[str, Unfit] = {}
        self._fleet, self._agreement, self._patience = fleet, agreement, _Patience(poll_seconds)
        self._there: Mapping[str, Properties] = {}
        self._warnings: dict[str, list[str]] = {}

    def ask(self, timeout: float) -> None:
        """Ask present nodes that are not yet known for descriptions."""
        there = self._there = self._fleet.nodes()
        self.known = {name: reply for name, reply in self.known.items() if name in there}
        strangers = self._patience.due(name for name in there if name not in self.known)
        timeout = min(timeout, _DESCRIBING_SECONDS + _A_NODE_SECONDS * len(strangers))
        described = _describe(self._fleet, self._agreement, strangers, timeout)
        for name in filter(described.__contains__, strangers):  # in an order that does not depend on timing
            fit = _check(described[name], there[name], self._agreement, self.known)
            if isinstance(fit, Unfit):
                self.refused[name] = fit
                self._patience.put_off(name)
                continue
            self.refused.pop(name, None)
            self.known[name], self._warnings[name] = fit, _warn(name, fit)
        self.refused = {name: unfit for name, unfit in self.refused.items() if name in there}
        self._patience.forget_all_but(there)

    def joined(self) -> Joined:
        joined = Joined()
        for name, reply in self.known.items():
            for report in reply.clients:
                joined.nodes[report.client], joined.reports[report.client] = name, report
        joined.left_out.update(name for name, unfit in self.refused.items() if unfit.is_description)
        return joined

    def wanted(self, joined: Joined, is_over: bool) -> int:
        """Return the required number of clients; once the time is over, without those of nodes left out."""
        unfit = {client for name in joined.left_out for client in clients_of(self._there[name])}
        clients = self._agreement.clients
        return clients - (len(unfit & set(range(clients))) if is_over else 0)

    def warn(self, joined: Joined) -> list[str]:
        """Return warnings about the nodes that take part, and those left out."""
        left_out = [f"node {name!r} is left out: it {self.refused[name].why}" for name in sorted(joined.left_out)]
        return [sentence for name in self.known for sentence in self._warnings[name]] + left_out


class _Patience:
    """Asks an unfit node again, less and less often, since its owner sees a line each time."""

    def __init__(self, first_seconds: float) -> None:
        self._first = first_seconds
        self._pauses: dict[str, tuple[float, float]] = {}

    def due(self, names: Iterable[str]) -> list[str]:
        now = time.monotonic()
        return [name for name in names if name not in self._pauses or now >= self._pauses[name][0]]

    def put_off(self, name: str) -> None:
        _, before = self._pauses.get(name, (0.0, self._first))
        pause = min(2 * before, max(_LONGEST_PAUSE, self._first))
        self._pauses[name] = time.monotonic() + pause, pause

    def forget_all_but(self, names: Container[str]) -> None:
        self._pauses = {name: pause for name, pause in self._pauses.items() if name in names}


def ask_again(
    fleet: Fleet,
    agreement: Agreement,
    nodes: Mapping[int, str],
    timeout: float,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[int, ClientReport]:
    """Return the nodes' current reports during a run.

    Nodes without a proper answer in time, or with an impossible one, are left out.
    """
    there = fleet.nodes()
    names = [name for name in dict.fromkeys(nodes.values()) if name in there]
    reports: dict[int, ClientReport] = {}
    for name, reply in _describe(fleet, agreement, names, timeout).items():
        fit = _check(reply, there[name], agreement, {})
        if isinstance(fit, Unfit):
            tell(f"node {name!r} keeps its last report: it {fit.why}")
        else:
            reports |= {report.client: report for report in fit.clients if nodes.get(report.client) == name}
    return reports


def _describe(
    fleet: Fleet, agreement: Agreement, names: Sequence[str], timeout: float
) -> "dict[str, DescribeReply | Unfit]":
    """Ask nodes for descriptions; return each reply, or why there is none."""
    nonce = secrets.token_hex(16)
    request = encode(DescribeRequest(settings_digest=agreement.digest, nonce=nonce, settings=dict(agreement.told)))
    replies = fleet.call(dict.fromkeys(names, request), "describe", b"", timeout) if names else ()
    return {name: _read(content, nonce) for name, content in replies if name in names}


def _read(content: bytes | Failure, nonce: str) -> DescribeReply | Unfit:
    if isinstance(content, Failure):
        return Unfit(_WORDS.get(content.reason, _improper(content.reason)))
    opened = open_reply(content, DescribeReply, most_bytes({}, models=0))
    if isinstance(opened, str):
        return Unfit(_WORDS.get(opened, _improper(opened)), is_description=opened not in _WORDS)
    head, _ = opened
    return head if head.nonce == nonce else Unfit(_improper("repeated"), is_description=True)


def _improper(reason: str) -> str:
    return f"gave no proper answer ({reason})"


def _check(
    reply: DescribeReply | Unfit, properties: Properties, agreement: Agreement, known: Mapping[str, DescribeReply]
) -> DescribeReply | Unfit:
    """Return a node's description, or why it is unfit; `known` holds earlier nodes' descriptions."""
    if isinstance(reply, Unfit):
        return reply
    registered, seen = clients_of(properties), set[int]()
    taken = {report.client: other for other, earlier in known.items() for report in earlier.clients}
    for report in reply.clients:
        client = report.client
        if client >= agreement.clients:
            why = f"says that it is client {client}, but data.clients = {agreement.clients}; they count from 0"
        elif registered and client not in registered:
            listed = ", ".join(map(str, registered))
            why = f"says that it is client {client}, but its key is that of {listed}"
        elif client in taken:
            why = f"says that it is client {client}, but that is node {taken[client]!r}"
        elif client in seen:
            why = f"names client {client} twice"
        elif told := _contradicts(report, agreement.classes):
            why = f"{told} for client {client}"
        else:
            seen.add(client)
            continue
        return Unfit(why, is_description=True)
    return reply


def _contradicts(report: ClientReport, classes: int) -> str | None:
    """Return what in a report cannot be honest; empty if nothing."""
    counts = report.class_counts
    if counts is None:
        return None
    if len(counts) != classes:
        return f"reports {len(counts)} classes, where the data have {classes},"
    if report.epsilon is not None and report.epsilon < LEAST_EPSILON:
        return f"reports classes with epsilon = {report.epsilon:g}, which tell nothing,"
    if sum(counts) != report.samples:
        return f"reports {report.samples} samples, but {sum(counts)} in all classes,"
    return None


def _missing(joined: Joined, clients: int, refused: Mapping[str, Unfit]) -> str:
    missing = [client for client in range(clients) if client not in joined.nodes]
    listed = ", ".join(map(str, missing[:_SHOWN])) + (f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else "")
    sentence = f"{len(joined.nodes)} of {clients} clients are there; missing: {listed}"
    others = [f"node {name!r} {unfit.why}" for name, unfit in refused.items()]
    return "; ".join([sentence, *others[:_SHOWN]])


def _warn(name: str, reply: DescribeReply) -> list[str]:
    """Return warnings about a run with this node."""
    warnings = []
    if abs(apart := reply.utc - time.time()) >= CLOCKS_APART_SECONDS:
        ahead, hours = "ahead of" if apart > 0 else "behind", min(abs(apart) / 3600, _MOST_HOURS)
        warnings.append(f"the clock of node {name!r} is {hours:.1f} hours {ahead} this machine's")
    here = package_versions()
    for package in BITS_DEPEND_ON:
        if (there := reply.versions.get(package)) != here[package]:
            warnings.append(
                f"node {name!r} has {package} {there}, here it is {here[package]}; results may differ from simulation "
                "in their last bits"
            )
    return warnings
