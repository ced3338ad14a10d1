"""The bound with one more client at each aggregator in turn, from running sums (Algorithm 2 in O(M) a client).

`Clusters` keeps, for the clients placed so far, the terms of Table IV's formulas for each cluster. For one more
client it makes an `Offer`: the same terms of each cluster if the client joined it. A `Rule` is a pattern's formula:
it turns these into the bounds for all aggregators at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from atoll.clustering.feduc.incremental.central import cenasy, censyn
from atoll.clustering.feduc.incremental.clusters import Clusters, Offer
from atoll.clustering.feduc.incremental.decasy import decasy
from atoll.clustering.feduc.incremental.decsyn import Inverse, decsyn
from atoll.clustering.feduc.problem import Problem
from atoll.support.arrays import Floats, Ids

Rule = Callable[[Clusters, Offer], Floats]
"""Returns the bound with the offer's client at each aggregator in turn, [aggregators]."""


@dataclass(frozen=True, eq=False)
class Incremental:
    """An assignment that grows client by client, with the bounds and completions of its next step."""

    clusters: Clusters
    rule: Rule

    def candidates(self, client: int) -> tuple[Floats, Floats]:
        """Return the bound and the cluster's completion in seconds for the client at each aggregator, [aggregators]."""
        offer = self.clusters.offer(client)
        return self.rule(self.clusters, offer), offer.completion_seconds

    def place(self, client: int, aggregator: int) -> None:
        """Assign the client to the aggregator."""
        self.clusters.place(client, aggregator)


def start(problem: Problem, labels: Ids) -> Incremental:
    """Return the state in which the clients with a label of at least 0 are placed."""
    if problem.pattern == "decsyn":
        rule = partial(decsyn, problem, inverse=Inverse(problem))
    else:
        rule = partial({"censyn": censyn, "cenasy": cenasy, "decasy": decasy}[problem.pattern], problem)
    made = Incremental(Clusters(problem), rule)
    for client in np.flatnonzero(labels >= 0).tolist():
        made.place(client, int(labels[client]))
    return made
