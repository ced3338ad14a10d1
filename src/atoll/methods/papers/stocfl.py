"""StoCFL: clusters of clients whose first updates agree, with a global model above them (Zeng et al. 2023)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from atoll.data.population import Population
from atoll.engine.grouping import Grouping
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import (
    COMMON,
    agglomerate,
    apart,
    as_vectors,
    common_of,
    cosine_distances,
    newcomers_first,
)
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event
from atoll.schedules.packed import pack
from atoll.support.arrays import Floats, Ids
from atoll.support.limits import Cosine, NotNegative, Positive, Share

if TYPE_CHECKING:
    from torch import nn


@checked
def stocfl(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    clusters: Positive = 4,
    least_cosine: Cosine = 0.5,
    penalty: NotNegative = 0.05,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """StoCFL: clusters merge while their clients' first updates agree; each trains near a model of all clients.

    Zeng et al. 2023, "Stochastic clustered federated learning". A client that is drawn for the first time computes its
    update Psi_i of the initial model, and is a cluster of its own. Clusters, represented by the means of their clients'
    Psi, then merge, repeatedly, if the cosine is at least `least_cosine`, tau. After that the cohort takes the local
    rule's steps twice, on the same batches: from the global model omega, and from a cluster's theta_k on ``F_i(theta) +
    lambda / 2 * ||theta - omega||^2``. The server averages omega over all, and theta_k over its cluster's clients.

    As in the authors' code a new cluster begins with omega, and a merged one goes on with the model of its largest
    part. There the clusters of a cohort are compared, once a round, by the clients drawn; here all that were found are,
    by all of their clients. Two models are communicated, and one for Psi; a round takes twice the
    computation, and Psi once. With lambda = 0 and a single cluster it is FedAvg, on full batches to the bit.

    Args:
        clusters: maximum number of clusters; the paper sets no limit.
        least_cosine: of clusters that merge, tau.
        penalty: weight of the pull toward the global model, lambda.

    Raises:
        InputError: more clusters than clients, or the rule has its own proximal term.
    """
    refuse_proximal(rule, "method.name = 'stocfl', whose penalty is method.penalty")
    from atoll.methods.parts.personal_trainer import BiLevelTrainer  # late: reading settings needs no PyTorch

    turns = newcomers_first(population, rounds, fraction, seed, np.array([], np.int64))
    twice = clock and clock.slower(2)
    schedule = apart(population, clusters, turns, rounds, twice, asking=clock)
    halved = (  # the initial model down and Psi up are half of what is communicated otherwise
        replace(e, models_down=-(-e.models_down // 2), models_up=-(-e.models_up // 2)) if e.regroups else e
        for e in schedule.events
    )
    return Method(
        replace(schedule, events=pack(halved)),
        rule,
        trainer=partial(BiLevelTrainer, penalty=penalty),
        shared=tuple(f"{name}{COMMON}" for name in module.state_dict()),
        labels=np.full(len(population), -1),
        regroup=Merging(clusters, least_cosine),
        clock=twice,
    )


@dataclass(frozen=True)
class Merging:
    """Merges clusters, newcomers among them, while the cosine of their mean updates is large enough."""

    clusters: int
    least_cosine: float

    def __call__(self, event: Event, state: State) -> Grouping:
        """Return the clusters, which keep the number and the model of their largest part."""
        assert state.labels is not None, "Method.labels are given"
        labels, models = state.labels.copy(), dict(enumerate(state.starts))
        known = np.array(sorted(state.clients))
        found = self.merge(as_vectors([state.clients[k] for k in known.tolist()]), labels[known])
        groups = [known[found == group] for group in range(int(found.max()) + 1)]
        for own in groups:  # those that have a number are first, as `merge` returns them
            before = state.labels[own][state.labels[own] >= 0]
            labels[own] = free = np.bincount(before).argmax() if len(before) else min(set(models).difference(labels))
            if not len(before):
                models[int(free)] = common_of(state.starts[0])
        return Grouping(labels, models)

    def merge(self, updates: Floats, labels: Ids) -> Ids:
        """Return each client's cluster from its update and the cluster that it was in; -1: it is one of its own."""
        own = labels.max() + 1 + np.arange(len(labels))
        found = np.unique(np.where(labels < 0, own, labels), return_inverse=True)[1]
        while True:
            means = np.stack([updates[found == c].mean(axis=0) for c in range(int(found.max()) + 1)])
            merged = agglomerate(cosine_distances(means), self.clusters, "single", 1 - self.least_cosine)
            if merged.max() + 1 == len(means):
                return np.asarray(found)
            found = merged[found]
