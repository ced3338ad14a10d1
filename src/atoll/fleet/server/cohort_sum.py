"""One cohort's secure sum on the server's side."""

import math
import secrets
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.aggregation.fixed_point import FixedPoint
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.fleet.agreed.agreement import Agreement
from atoll.fleet.agreed.sum_messages import WorkDone, work_of
from atoll.fleet.server.replies import Reason
from atoll.secure.collector import Collector
from atoll.secure.fixed import unflat
from atoll.secure.roster import Instance

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


@dataclass(eq=False)
class Summation:
    """A secure sum in progress.

    Attributes:
        nodes: clients by participating node.
        start: the packed start model.
        samples: the number of samples that each client must report; any number for clients not listed.
        aside: clients that are skipped.
        excluded: clients whose nodes broke the protocol before, and so are in no sum.
        told: result of the last step.
        work: work of each node whose masked numbers arrived.
        seconds: from request to reply, by node.
        why: why the sum failed; empty if it has not.
        accused: by node, those that had from it shares that they could not open.
    """

    cohort: Cohort
    nodes: Mapping[str, tuple[int, ...]]
    collector: Collector
    agreement: Agreement
    fixed: FixedPoint
    start: bytes
    samples: Mapping[int, int]
    aside: set[int]
    excluded: frozenset[int] = frozenset()
    told: Any = None
    reasons: dict[str, Reason] = field(default_factory=dict)
    work: dict[str, tuple[WorkDone, ...]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    why: str = ""
    accused: dict[str, set[str]] = field(default_factory=dict)

    @property
    def clients(self) -> set[int]:
        """The clients whose updates are in the sum; empty without a sum."""
        return set() if self.why else {client for node in self.collector.summed for client in self.nodes[node]}

    def finish(self) -> None:
        """Check that honest nodes could have produced the total."""
        if self.why:
            return
        total, clients = self.told.view(np.int64), self.clients
        weights = zip(self.cohort.clients.tolist(), self.cohort.weights.tolist(), strict=True)
        most = self.fixed.largest * sum(int(weight) for client, weight in weights if client in clients)
        if int(total.max(initial=0)) > most or int(total.min(initial=0)) < -most:
            self.why = "it is larger than all updates can be, so some node has not masked what it should"

    def reason_of(self, client: int) -> Reason | None:
        """Return why a client's update does not count; None if it does."""
        if client in self.clients:
            return None
        if client in self.aside:
            return "aside"
        if client in self.excluded:
            return "wrong_keys"
        node = next((name for name, clients in self.nodes.items() if client in clients), None)
        return "gone" if node is None else self.reasons.get(node, "too_few")

    def update(self) -> ClusterUpdate:
        """Return the cluster's update: the total and who is in it."""
        clients, everyone = self.clients, self.cohort.clients.tolist()
        answered = np.array([client in clients for client in everyone], bool)
        refused = Counter[str](reason for reason in map(self.reason_of, everyone) if reason is not None)
        if not clients:
            return ClusterUpdate(self.cohort.start, math.nan, 0.0, refused, answered)
        arrived = float(self.cohort.weights[answered].sum() / self.cohort.weights.sum())
        return ClusterUpdate(unflat(self.told, self.agreement.form), math.nan, arrived, refused, answered)


def begin(
    cohort: Cohort,
    nodes: Mapping[int, str],
    aside: set[int],
    agreement: Agreement,
    known: "Mapping[str, EllipticCurvePublicKey]",
    samples: Mapping[int, int],
    start: bytes,
    false: Collection[str] = (),
) -> Summation:
    """Return a cohort's secure sum, not yet started.

    Args:
        nodes: each client's node; a client without one counts as a lost node.
        aside: clients that are skipped, together with all others on the same node.
        false: names of nodes that broke the protocol before.
    """
    fixed = agreement.fixed
    assert fixed is not None, "else nothing is summed"
    everyone = cohort.clients.tolist()
    planned = {nodes.get(client, f"of client {client}") for client in everyone}
    silent = {nodes[client] for client in aside if client in nodes}
    aside = aside | {client for client in everyone if nodes.get(client) in silent}
    there = sorted(name for name in planned if name in known and name not in silent and name not in false)
    clients = {name: tuple(client for client in everyone if nodes.get(client) == name) for name in there}
    work = work_of(start, cohort.draws, cohort.round, clients)
    token = secrets.token_hex(16)
    instance = Instance(agreement.digest, token, cohort.event, cohort.repeat, cohort.cluster, work)
    collector = Collector(instance, {name: known[name] for name in there}, fixed.threshold, len(planned))
    told = {client: int(weight) for client, weight in zip(everyone, cohort.weights.tolist(), strict=True)}
    excluded = frozenset(client for client in everyone if nodes.get(client) in false)
    expected = told if fixed.by_samples else samples
    made = Summation(cohort, clients, collector, agreement, fixed, start, expected, aside, excluded)
    if len(planned) < fixed.least_nodes:
        made.why = f"its clients are on {len(planned)} nodes, secure.least_nodes = {fixed.least_nodes} must be"
    return made
