"""LCFed: clusters by low-rank models; clients stay near theirs and a global embedding (Zhang et al. 2025)."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from atoll.aggregation.mean import keep_start, mean
from atoll.data.population import Population
from atoll.engine.grouping import Grouping
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.local.rule import LocalRule
from atoll.methods.papers.personal_parts import head_of
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import COMMON, apart, as_vectors, nearest_means, newcomers_first, normalised
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event
from atoll.schedules.packed import pack
from atoll.support.limits import NotNegative, Positive, Share

if TYPE_CHECKING:
    from torch import nn


@checked
def lcfed(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    clusters: Positive = 4,
    penalty: NotNegative = 0.1,
    embedding_penalty: NotNegative = 0.1,
    decision_layers: Positive = 1,
    rank: Positive = 10,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """LCFed: clients train near their cluster's model, and near an embedding that all clusters share.

    Zhang et al. 2025, "LCFed: an efficient clustered federated learning framework for heterogeneous data". A model
    omega is an embedding phi and decision layers. A client takes the local rule's steps on ``F_i(omega_i) + mu / 2 *
    ||omega_i - Omega_k||^2 + lambda / 2 * ||phi_i - Phi||^2``. It then joins the cluster ``argmax_k cos(M omega_i, M
    Omega_k)``, M being the leading principal directions of clients' models; Omega_k becomes the mean of its cohort's
    models, and Phi that of all their embeddings.

    Of the paper only the abstract and CFLA's implementation were available; the rest is our reading. All clients
    train in the first round, from one model; k-means of their low-rank models, scaled to length 1, are the first
    clusters. M is made anew after each round from all clients' last models. Local steps begin at Omega_k, and means
    weigh by samples.

    Args:
        clusters: number of clusters, K.
        penalty: weight of the pull toward the cluster's model, mu.
        embedding_penalty: weight of the pull toward the global embedding, lambda.
        decision_layers: number of last layers with parameters that are no part of the embedding.
        rank: number of principal directions, D.

    Raises:
        InputError: more clusters than clients, no embedding is left, or the rule has its own proximal term.
    """
    refuse_proximal(rule, "method.name = 'lcfed', whose penalty is method.penalty")
    from atoll.local.weights import count_bytes, read_model  # late: reading settings needs no PyTorch
    from atoll.methods.parts.update_trainers import PulledTrainer

    decision = head_of(module, decision_layers, "decision_layers")
    embedding = tuple(name for name in module.state_dict() if name not in decision)
    everyone = np.arange(len(population))
    later = newcomers_first(population, rounds, fraction, seed, everyone)
    turns = (replace(turn, regroups=True, cohort=turn.cohort if turn.round else everyone) for turn in later)
    schedule = apart(population, clusters, turns, rounds, clock)
    share = count_bytes(read_model(module, embedding)) / count_bytes(module.state_dict())
    models = (len(e.cohort) + math.ceil(len(e.cohort) * share) * (e.index > 0) for e in schedule.events)
    events = (replace(e, models_down=down) for e, down in zip(schedule.events, models, strict=True))
    return Method(
        replace(schedule, events=pack(events)),
        replace(rule, proximal=penalty),
        combine=keep_start,  # the means are taken in the new clusters
        trainer=partial(PulledTrainer, embedding=embedding, penalty=embedding_penalty),
        labels=np.zeros_like(everyone),
        regroup=LowRank(clusters, rank, embedding, seed),
    )


@dataclass(frozen=True)
class LowRank:
    """Assigns clients by the cosines of low-rank models, then takes the means."""

    clusters: int
    rank: int
    embedding: tuple[str, ...]
    seed: int

    def __call__(self, event: Event, state: State) -> Grouping:
        """Return the clusters, and their models with the global embedding."""
        assert state.labels is not None, "Method.labels are given"
        rows, labels = as_vectors([state.clients[k] for k in range(len(state.labels))]), state.labels.copy()
        _, spread, found = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
        directions = found[: self.rank][spread[: self.rank] >= 1e-9 * spread[0]].T  # the rest is rounding
        low, centres = (normalised(each @ directions) for each in (rows[event.cohort], as_vectors(state.starts)))
        nearest = (low @ centres.T).argmax(axis=1) if event.index else nearest_means(low, self.clusters, self.seed)
        labels[event.cohort] = nearest
        sent = [(weight, state.clients[k]) for weight, k in zip(event.weights, event.cohort.tolist(), strict=True)]
        common = mean((weight, {f"{name}{COMMON}": own[name] for name in self.embedding}) for weight, own in sent)
        models = dict(enumerate(state.starts))
        for cluster in np.unique(nearest).tolist():
            models[cluster] = mean(pair for pair, chosen in zip(sent, nearest, strict=True) if chosen == cluster)
        return Grouping(labels, {cluster: model | common for cluster, model in models.items()})
