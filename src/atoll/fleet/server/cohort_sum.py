"""One cohort's secure sum as the server knows it: who was asked, what became of it."""

import math
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.aggregation.fixed_point import FixedPoint
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.fleet.agreed.agreement import Agreement
from atoll.fleet.agreed.sum_messages import WorkDone
from atoll.fleet.server.replies import Reason
from atoll.local.models import Form
from atoll.secure.collector import Collector
from atoll.secure.fixed import unflat
from atoll.secure.roster import Instance

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


@dataclass(eq=False)
class Summation:
    """A secure sum under way.

    Attributes:
        cohort: of whom.
        nodes: the clients of each node that takes part.
        collector: the server's side of the protocol.
        form: of the models.
        masked_form: of what nodes send.
        fixed: as what updates are summed.
        samples: that each client must say it weighs as; of others any number.
        told: what the last step has given.
        reasons: why nodes are out of it.
        work: what the clients of each node did whose masked numbers have come.
        seconds: that this took, from asking to the reply.
        why: why it comes to nothing; an empty text if it may.
    """

    cohort: Cohort
    nodes: Mapping[str, tuple[int, ...]]
    collector: Collector
    form: Form
    masked_form: Form
    fixed: FixedPoint
    samples: Mapping[int, int]
    told: Any = None
    reasons: dict[str, Reason] = field(default_factory=dict)
    work: dict[str, tuple[WorkDone, ...]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    why: str = ""

    @property
    def clients(self) -> set[int]:
        """The clients whose updates are in the sum; nobody's where there is none."""
        return set() if self.why else {client for node in self.summed for client in self.nodes[node]}

    @property
    def summed(self) -> tuple[str, ...]:
        """The nodes whose masked numbers have come."""
        return self.collector.summed

    def finish(self) -> None:
        """Make sure that the total is one that honest nodes can have."""
        if self.why:
            return
        total, clients = self.told.view(np.int64), self.clients
        weights = zip(self.cohort.clients.tolist(), self.cohort.weights.tolist(), strict=True)
        most = self.fixed.largest * sum(int(weight) for client, weight in weights if client in clients)
        if int(total.max(initial=0)) > most or int(total.min(initial=0)) < -most:
            self.why = "it is larger than all updates can be, so some node has not masked what it should"

    def reason_of(self, client: int) -> Reason | None:
        """Return why nothing of a client counts; None if it does."""
        if client in self.clients:
            return None
        node = next((name for name, clients in self.nodes.items() if client in clients), None)
        return "gone" if node is None else self.reasons.get(node, "too_few")

    def update(self, aside: set[int]) -> ClusterUpdate:
        """Return the cluster's update: the total, and who is in it; `aside` were not asked."""
        clients, everyone = self.clients, self.cohort.clients.tolist()
        answered = np.array([client in clients for client in everyone], bool)
        reasons = ("aside" if client in aside else self.reason_of(client) for client in everyone)
        refused = Counter[str](reason for reason in reasons if reason is not None)
        if not clients:
            return ClusterUpdate(self.cohort.start, math.nan, 0.0, refused, answered)
        arrived = float(self.cohort.weights[answered].sum() / self.cohort.weights.sum())
        return ClusterUpdate(unflat(self.told, self.form), math.nan, arrived, refused, answered)


def begin(
    cohort: Cohort,
    nodes: Mapping[int, str],
    aside: set[int],
    agreement: Agreement,
    known: "Mapping[str, EllipticCurvePublicKey]",
    samples: Mapping[int, int],
) -> Summation:
    """Return the secure sum of a cohort, not begun yet.

    Args:
        cohort: of whom.
        nodes: the node of each client that has one; each other counts as a node that is lost.
        aside: clients that are not asked; neither are the others of the same node.
        agreement: with the nodes.
        known: nodes' public keys.
        samples: that each client said it holds.
    """
    fixed = agreement.fixed
    assert fixed is not None, "else nothing is summed"
    everyone = cohort.clients.tolist()
    planned = {nodes.get(client, f"of client {client}") for client in everyone}
    silent = {nodes[client] for client in aside if client in nodes}
    there = sorted(name for name in planned if name in known and name not in silent)
    clients = {name: tuple(client for client in everyone if nodes.get(client) == name) for name in there}
    instance = Instance(agreement.digest, secrets.token_hex(16), cohort.event, cohort.repeat, cohort.cluster)
    collector = Collector(instance, {name: known[name] for name in there}, fixed.threshold, len(planned))
    told = {client: int(weight) for client, weight in zip(everyone, cohort.weights.tolist(), strict=True)}
    made = Summation(
        cohort, clients, collector, agreement.form, agreement.sent_form, fixed, told if fixed.by_samples else samples
    )
    if len(planned) < fixed.least_nodes:
        made.why = f"its clients are on {len(planned)} nodes, secure.least_nodes = {fixed.least_nodes} must be"
    return made
