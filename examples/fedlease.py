"""FedLEASE's experts: clients tune adapters alone, and are then clustered once by their factors B.

Wang, Bian, Zhang and Xu 2025, "Adaptive LoRA experts allocation and selection for federated fine-tuning"
(arXiv 2509.15087). How many clusters there are is read from the data, by silhouettes. In an experiment file beside this
one, with `model.lora` set:

    [method]
    name = "fedlease:fedlease"
    clusters = 8   # at most
    warmup = 2     # rounds in which each client trains alone

Read from the abstract and the authors' code (github.com/lei-wang-link/FedLEASE): distances, linkage, silhouettes, and
where experts begin. Not here: the router by which a client mixes up to M experts, which needs a model of its own; each
client uses its cluster's expert alone. The code warms up for 5 rounds and takes at most 4 clusters, of queries and
values; here every layer with adapters counts, and what is set.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import silhouette_score

import atoll
from atoll.aggregation.mean import mean


def fedlease(
    population: atoll.Population,
    rule: atoll.LocalRule,
    rounds: int,
    clusters: int = 8,
    warmup: int = 1,
    fraction: float = 0.1,
    clock: atoll.Clock | None = None,
    seed: int = 0,
) -> atoll.Method:
    """Each client tunes adapters alone for `warmup` rounds; then FedAvg in each of the clusters found, at most so many.

    Every cluster's expert begins as the plain mean of its clients' adapters, and clients count alike in its means.
    """
    if not 0 < warmup < rounds or not 2 <= clusters < len(population):
        raise atoll.InputError(
            f"method.warmup = {warmup}, method.clusters = {clusters}: must be from 1 to rounds - 1 = {rounds - 1}, and "
            f"from 2 to data.clients - 1 = {len(population) - 1}"
        )
    whole, sampled = (
        atoll.ifca(population, rule, rounds, clusters, fraction=share, clock=clock, seed=seed).schedule
        for share in (1.0, fraction)
    )
    last, count = warmup - 1, len(population)
    events, now = [], 0.0
    for index, (all_, some) in enumerate(zip(whole.events, sampled.events, strict=True)):
        own = all_ if index <= last else some
        began, now = now, now + own.seconds - own.began[0]
        own = replace(own, began=(began,) * len(own.active), seconds=now, models_down=len(own.cohort))
        if index <= last:  # alone: the initial model is sent once, and the adapters once they are wanted
            sent = {"models_down": count * (index == 0), "models_up": count * (index == last)}
            own = replace(own, starts=(), regroups=index == last, **sent)
        events.append(own)

    def regroup(event: atoll.Event, state: atoll.State) -> atoll.Grouping:
        sent = [state.clients[client] for client in range(count)]
        labels = allocate(distances(sent), clusters)
        members = {int(cluster): np.flatnonzero(labels == cluster) for cluster in np.unique(labels)}
        return atoll.Grouping(labels, {cluster: mean((1.0, sent[k]) for k in own) for cluster, own in members.items()})

    made = atoll.Method(
        replace(sampled, events=tuple(events)),
        rule,
        trainer=partial(Alone, warmup=warmup),
        labels=np.zeros(count, int),
        regroup=regroup,
    )
    return atoll.weigh_equally(made)


class Alone(atoll.ModelTrainer):
    """During the warm-up a client goes on from its own adapters."""

    trains_parts = True

    def __init__(self, *given: Any, warmup: int, **named: Any) -> None:
        """Set up a `Trainer`, with the number of rounds in which clients train alone."""
        super().__init__(*given, **named)
        self.warmup = warmup

    def train(self, task: atoll.ClientTask) -> atoll.ClientUpdate:
        """Return the client's adapters after its local steps, also as its state."""
        alone = task.round < self.warmup and task.state is not None
        return super().train(replace(task, start=task.state) if alone else task)


def distances(sent: Sequence[dict[str, torch.Tensor]]) -> np.ndarray:
    """Return one minus the cosine of each two clients' B, the mean over layers, [clients, clients]."""
    names = sorted(name for name in sent[0] if "lora_B." in name)
    if not names:
        raise atoll.InputError("method.name = 'fedlease': the model has no adapters; model.lora adds them")
    cosines = []
    for name in names:
        rows = np.stack([each[name].double().numpy().ravel() for each in sent])
        units = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-8)
        cosines.append(units @ units.T)
    found = 1 - np.mean(cosines, axis=0)
    np.fill_diagonal(found, 0)
    return np.clip((found + found.T) / 2, 0, None)


def allocate(apart: np.ndarray, most: int) -> np.ndarray:
    """Return each client's cluster by average linkage, in the number of 2 to `most` that has the best silhouette."""
    tree = linkage(squareform(apart, checks=False), "average")
    cuts = [cut_tree(tree, [number])[:, 0] for number in range(2, most + 1)]
    return max(cuts, key=lambda labels: silhouette_score(apart, labels, metric="precomputed"))
