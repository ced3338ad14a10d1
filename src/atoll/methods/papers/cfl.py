"""CFL: clusters split in two when their clients' updates disagree (Sattler et al. 2020)."""

from dataclasses import dataclass

import numpy as np

from atoll.data.population import Population
from atoll.engine.grouping import Grouping
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import as_vectors, cosine_distances, everyone_apart
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event
from atoll.support.arrays import Floats, Mask
from atoll.support.limits import NotNegative, Positive, Probability


@checked
def cfl(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: Positive = 4,
    eps1: NotNegative = 0.4,
    eps2: NotNegative = 1.6,
    gamma: Probability = 0.0,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """CFL: FedAvg within clusters that split in two once the cluster is stationary but its clients are not.

    Sattler, Müller and Samek 2020, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization
    under Privacy Constraints", Algorithm 4 (weight updates). All clients train in every round. A cluster c with
    updates d_i then splits if ``||sum n_i d_i / n_c|| < eps1``, ``max ||d_i|| > eps2`` and
    ``gamma < sqrt((1 - a) / 2)``. Its parts c1 and c2 minimise the largest similarity between them,
    ``a = max of <d_i, d_j> / (||d_i|| ||d_j||)``, and continue from its mean. With eps1 = 0 it is FedAvg.

    Args:
        clusters: maximum number of clusters; the paper sets no limit.
        eps1: a cluster is stationary if its mean update is shorter.
        eps2: a client is not stationary if its update is longer.
        gamma: bound on a client's deviation from its group, the paper's gamma_max; 0: no bound.
        seed: unused, as all clients train.

    Raises:
        InputError: more clusters than clients.
    """
    from atoll.methods.parts.update_trainers import UpdateTrainer  # late: reading settings needs no PyTorch

    return Method(
        everyone_apart(population, clusters, rounds, clock),
        rule,
        trainer=UpdateTrainer,
        labels=np.zeros(len(population), np.int64),
        regroup=Splitting(eps1, eps2, gamma),
    )


@dataclass(frozen=True, eq=False)
class Splitting:
    """Splits clusters up to the maximum number; the part without the first client gets the next number."""

    eps1: float
    eps2: float
    gamma: float

    def __call__(self, event: Event, state: State) -> Grouping:
        """Return the cluster labels after an event."""
        assert state.labels is not None, "Method.labels are given"
        labels, models = state.labels.copy(), {}
        for cluster in range(labels.max() + 1):
            members, free = np.flatnonzero(labels == cluster), int(labels.max()) + 1
            if free == len(state.starts):
                break
            updates = as_vectors([state.clients[k] for k in members.tolist()])
            if self._is_at_odds(updates, event.weights[members]):
                second, similarity = bipartition(updates)
                if self.gamma < np.sqrt((1 - similarity) / 2):
                    labels[members[second]], models[free] = free, state.starts[cluster]
        return Grouping(labels, models)

    def _is_at_odds(self, updates: Floats, weights: Floats) -> bool:
        """Return whether a cluster of several clients is stationary as a whole, but one of its clients is not."""
        if len(updates) == 1:
            return False
        mean = np.linalg.norm(np.average(updates, axis=0, weights=weights))
        return bool(mean < self.eps1 and np.linalg.norm(updates, axis=1).max() > self.eps2)


def bipartition(updates: Floats) -> tuple[Mask, float]:
    """Return the bipartition with the least maximum similarity between parts: the second part, and that similarity.

    Found by single linkage, which merges the most similar clients until two parts are left (Algorithm 1).
    """
    from scipy.cluster.hierarchy import cut_tree, linkage

    tree = linkage(cosine_distances(updates), "single")
    parts = cut_tree(tree, [2])[:, 0]
    return np.asarray(parts != parts[0]), float(1 - tree[-1, 2])
