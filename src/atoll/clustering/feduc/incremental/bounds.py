"""The bound with one more client at each aggregator in turn, from running sums (Algorithm 2 in O(M) a client).

`Clusters` keeps, for the clients placed so far, the terms of Table IV's formulas for each cluster. For one more
client it makes an `Offer`: the same terms of each cluster if the client joined it. A `Rule` is a pattern's formula:
it turns these into the bounds for all aggregators at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atoll.clustering.feduc.incremental.central import CenAsy, CenSyn
from atoll.clustering.feduc.incremental.clusters import Clusters, Offer
from atoll.clustering.feduc.incremental.decasy import DecAsy
from atoll.clustering.feduc.incremental.decsyn import DecSyn
from atoll.clustering.feduc.problem import Pattern, Problem
from atoll.support.arrays import Floats, Ids


class Rule(Protocol):
    """A pattern's bound, kept up to date as clients are placed."""

    def bounds(self, clusters: Clusters, offer: Offer) -> Floats:
        """Return the bound with the offer's client at each aggregator in turn, [aggregators]."""
        ...

    def placed(self, clusters: Clusters, aggregator: int) -> None:
        """Note that one more client is now at the aggregator."""
        ...


_RULES: dict[Pattern, Callable[[Problem], Rule]] = {
    "censyn": CenSyn,
    "cenasy": CenAsy,
    "decsyn": DecSyn,
    "decasy": DecAsy,
}


@dataclass(frozen=True, eq=False)
class Incremental:
    """An assignment that grows client by client, with the bounds and completions of its next step."""

    clusters: Clusters
    rule: Rule

    def candidates(self, client: int) -> tuple[Floats, Floats]:
        """Return the bound and the cluster's completion in seconds for the client at each aggregator, [aggregators]."""
        offer = self.clusters.offer(client)
        return self.rule.bounds(self.clusters, offer), offer.completion_seconds

    def place(self, client: int, aggregator: int) -> None:
        """Assign the client to the aggregator."""
        self.clusters.place(client, aggregator)
        self.rule.placed(self.clusters, aggregator)


def start(problem: Problem, labels: Ids) -> Incremental:
    """Return the state in which the clients with a label of at least 0 are placed."""
    made = Incremental(Clusters(problem), _RULES[problem.pattern](problem))
    for client in np.flatnonzero(labels >= 0).tolist():
        made.place(client, int(labels[client]))
    return made
