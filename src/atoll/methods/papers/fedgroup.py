"""FedGroup: groups formed once, by the directions of clients' first updates (Duan et al. 2021)."""

from dataclasses import dataclass

import numpy as np

from atoll.aggregation.mean import add_updates, mean
from atoll.data.population import Population
from atoll.engine.grouping import Grouping
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import Turn, apart, as_vectors, nearest_means, newcomers_first, normalised
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event
from atoll.schedules.timeline import draw_cohort
from atoll.support.arrays import Floats, Ids
from atoll.support.limits import Positive, Share
from atoll.support.seeds import generator


@checked
def fedgroup(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: Positive = 4,
    pretrained: Positive = 20,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedGroup: some clients are grouped by their first updates; others join a group when first drawn.

    Duan et al. 2021, "FedGroup: efficient federated learning via decomposed similarity-based clustering" (FlexCFL's
    static grouping), Algorithms 1 to 3. Cold start: ``pretrained * m`` randomly drawn clients, m being `clusters`,
    send their updates D_i from w_0. With V the m leading right singular vectors of these, k-means groups the rows
    ``(cos(D_i, v_1), ..., cos(D_i, v_m))`` (EDC). A group starts from the unweighted mean of its clients'
    ``w_0 + D_i`` and trains by FedAvg. A newcomer first computes its own D_i and joins the group with the largest
    cosine to its founders' mean D. Groups do not exchange models (the paper's eta_g = 0).

    Args:
        rule: the local training rule, also for pretraining.
        rounds: number of rounds after the cold start, T.
        clusters: number of groups, m.
        pretrained: cold-start clients per group; at most all clients are used.
        clock: clients' training and upload times; None: every event takes one second.

    Raises:
        InputError: more groups than clients.
    """
    from atoll.methods.parts.personal_trainer import PretrainTrainer  # late: reading settings needs no PyTorch

    everyone = np.arange(len(population))
    founders = draw_cohort(everyone, min(len(everyone), pretrained * clusters), generator(seed, "founders"))
    first = Turn(founders, 0, regroups=True, asks=True)
    turns = [first, *newcomers_first(population, rounds, fraction, seed, founders)]
    return Method(
        apart(population, clusters, turns, rounds, clock),
        rule,
        trainer=PretrainTrainer,
        labels=np.full(len(everyone), -1),
        regroup=Grouper(clusters, founders, seed),
    )


@dataclass(frozen=True, eq=False)
class Grouper:
    """Groups the cold-start clients and adds newcomers; clients never change groups."""

    clusters: int
    founders: Ids
    seed: int

    def __call__(self, event: Event, state: State) -> Grouping:
        """Return the groups after an event and, after the cold start, their models."""
        assert state.labels is not None, "Method.labels are given"
        labels = state.labels.copy()
        updates = self._updates_of(event.cohort, state)
        if event.index:
            labels[event.cohort] = self._join(updates, state)
            return Grouping(labels, {0: state.starts[0]})  # not the mean of newcomers' copies
        labels[event.cohort] = nearest_means(decompose(updates, self.clusters), self.clusters, self.seed)
        return Grouping(labels, {g: self._first_model(g, labels, state) for g in range(int(labels.max()) + 1)})

    def _first_model(self, group: int, labels: Ids, state: State) -> Model:
        members = np.flatnonzero(labels == group).tolist()
        return mean((1.0, add_updates(state.starts[0], [(1.0, state.clients[k], {})])) for k in members)

    def _join(self, updates: Floats, state: State) -> Ids:
        """Return, for each update, the group whose founders' mean update has the largest cosine to it."""
        assert state.labels is not None, "Method.labels are given"
        theirs, groups = self._updates_of(self.founders, state), state.labels[self.founders]
        directions = np.stack([theirs[groups == g].mean(axis=0) for g in range(int(groups.max()) + 1)])
        return np.asarray((normalised(updates) @ normalised(directions).T).argmax(axis=1))

    def _updates_of(self, clients: Ids, state: State) -> Floats:
        return as_vectors([state.clients[k] for k in clients.tolist()])


def decompose(updates: Floats, directions: int) -> Floats:
    """Return each update's cosines to the leading right singular vectors of all, [updates, at most directions]."""
    leading = np.linalg.svd(updates, full_matrices=False)[2][:directions]
    signs = np.sign(leading[np.arange(len(leading)), np.abs(leading).argmax(axis=1)])  # the SVD leaves signs open
    return np.asarray(normalised(updates) @ (leading * signs[:, None]).T)
