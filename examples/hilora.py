"""HiLoRA: adapters of three tiers, one after the other: for all clients, for each cluster, for each client.

Peng et al. 2026, "HiLoRA: Hierarchical low-rank adaptation for personalized federated learning" (arXiv 2603.02785). A
client's weights are ``W + B_r A_r + B_c A_c + B_l A_l``: root, cluster and leaf. In an experiment file beside this one:

    [model]
    lora = { r = 12, ... }   # all three tiers, 4 each: the factors lie side by side
    [method]
    name = "hilora:hilora"
    root = 10                # rounds of the first tier
    cluster = 10             # of the second; the others are of the third

Read from the abstract and a reader's notes on the paper, not from its full text. Our readings: each tier has a number
of rounds (there: until it hardly moves); clients are clustered by B of the last root round alone (there: by a moving
average over rounds); what is sent holds all tiers, as the bytes count, though two of them stand still.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.cluster import SpectralClustering

import atoll
from atoll.aggregation.lora_product import factors_of, mean_of_products
from atoll.aggregation.mean import mean

TIERS = ROOT, CLUSTER, LEAF = range(3)
Model = dict[str, torch.Tensor]


def hilora(
    population: atoll.Population,
    rule: atoll.LocalRule,
    rounds: int,
    root: int = 10,
    cluster: int = 10,
    clusters: int = 8,
    apart: float = 0.1,
    fraction: float = 0.1,
    clock: atoll.Clock | None = None,
    seed: int = 0,
) -> atoll.Method:
    """Tune the root tier by FedAvg, cluster by the spaces that B spans, tune each cluster's tier, then each client's.

    Args:
        root: rounds of the root tier. In the last of them everyone trains, whatever the fraction.
        cluster: rounds of the clusters' tier.
        clusters: the most clusters; their number is where the Laplacian's eigenvalues have their largest gap.
        apart: gamma, the weight of ``||B_h^T B||^2`` in the loss, for each earlier tier h.
    """
    if min(root, cluster) < 1 or root + cluster > rounds or not 2 <= clusters < len(population):
        raise atoll.InputError(
            f"method.root = {root}, method.cluster = {cluster}, method.clusters = {clusters}: root and cluster must be "
            f"at least 1 and together at most rounds = {rounds}, clusters from 2 to data.clients - 1"
        )
    whole, sampled = (
        atoll.ifca(population, rule, rounds, clusters, fraction=share, clock=clock, seed=seed).schedule
        for share in (1.0, fraction)
    )
    events, now, asked = [], 0.0, set[int]()
    for index, (all_, some) in enumerate(zip(whole.events, sampled.events, strict=True)):
        own = all_ if index == root - 1 else some
        began, now = now, now + own.seconds - own.began[0]
        down = up = len(own.cohort)
        if index >= root + cluster:  # a leaf stays with its client, which is sent the tiers above once
            fresh = set(own.cohort.tolist()) - asked
            down, up, asked = len(fresh), 0, asked | fresh
        times = {"began": (began,) * len(own.active), "seconds": now}
        events.append(replace(own, models_down=down, models_up=up, regroups=index == root - 1, **times))

    def regroup(event: atoll.Event, state: atoll.State) -> atoll.Grouping:
        labels = cluster_by(distances([state.clients[client] for client in range(len(population))]), clusters, seed)
        return atoll.Grouping(labels, dict.fromkeys(range(clusters), state.starts[0]))

    return atoll.Method(
        replace(sampled, events=tuple(events)),
        rule,
        combine=combine_tiers,
        trainer=partial(Tiered, last=(root, root + cluster), weight=apart),
        labels=np.zeros(len(population), int),
        regroup=regroup,
    )


def tier(model: Model, names: Iterable[str], number: int) -> Model:
    """Return one tier of the factors: rows of A, columns of B."""
    found = {}
    for name in names:
        size, odd = divmod(model[name].shape["lora_B." in name], len(TIERS))
        if odd:
            raise atoll.InputError(f"model.lora.r = {len(TIERS) * size + odd}: must be a multiple of three with hilora")
        found[name] = model[name].narrow(int("lora_B." in name), number * size, size)
    return found


class Tiered(atoll.ModelTrainer):
    """Trains one tier of the adapters, away from those before it. The client's state is its model, with its leaf."""

    trains_parts = True

    def __init__(self, *given: Any, last: tuple[int, int], weight: float, **named: Any) -> None:
        """Set up a `Trainer`, with the rounds at which the root's and the clusters' tier are over."""
        super().__init__(*given, **named)
        self.last, self.weight, self.dense = last, weight, None

    def train(self, task: atoll.ClientTask) -> atoll.ClientUpdate:
        """Return the client's model; in leaf rounds what it was sent, as leaves stay with their clients."""
        pairs = factors_of(task.start)
        names = [name for pair in pairs.items() for name in pair]
        number = sum(task.round >= last for last in self.last)
        begun = {name: each.clone() for name, each in task.start.items()}
        if task.state is not None:
            for name, own in tier(begun, names, LEAF).items():
                own.copy_(tier(task.state, [name], LEAF)[name])
        own = dict(self.module.named_parameters())
        hooks = [own[name].register_hook(partial(self._masked, own[name], name, number)) for name in names]
        try:
            update = super().train(replace(task, start=begun))
        finally:
            for hook in hooks:
                hook.remove()
        made = {name: each.clone() for name, each in begun.items()}  # an optimiser's decay would move the other tiers
        made |= {name: update.model[name] for name in made.keys() - set(names)}
        for name, trained in tier(update.model, names, number).items():
            tier(made, [name], number)[name].copy_(trained)
        return replace(update, model=task.start if number == LEAF else made, state=made)

    def _masked(self, whole: torch.Tensor, name: str, number: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of this tier alone, with that of ``weight * ||B_h^T B||^2`` for the tiers h before it."""
        made = torch.zeros_like(gradient)
        own = tier({name: made}, [name], number)[name]
        own.copy_(tier({name: gradient}, [name], number)[name])
        if "lora_B." in name:
            here = tier({name: whole.detach()}, [name], number)[name]
            for before in range(number):
                there = tier({name: whole.detach()}, [name], before)[name]
                own.add_(there @ (there.T @ here), alpha=2 * self.weight)
        return made


def combine_tiers(models: Iterable[tuple[float, Model]], start: Model, cohort_weight: float) -> Model:
    """Return the mean of ``B A`` of the tier that moved, of the same rank: ``B = U``, ``A = S V``; else the start."""
    pairs = list(models)
    factors = factors_of(start)
    names = [name for pair in factors.items() for name in pair]
    made = mean(pairs) | {name: start[name].clone() for name in names}  # such as a head's
    for number in TIERS:
        old, new = tier(start, names, number), [(weight, tier(model, names, number)) for weight, model in pairs]
        if all(torch.equal(model[name], old[name]) for _, model in new for name in names):
            continue
        merged = mean_of_products(new, old, cohort_weight)
        for a, b in factors.items():
            sizes = merged[b].norm(dim=0)
            scales = torch.where(sizes > 0, sizes, 1)  # two zero factors would stay zero
            tier(made, [b], number)[b].copy_(merged[b] / scales)
            tier(made, [a], number)[a].copy_(merged[a] * scales[:, None])
    return made


def distances(sent: Sequence[Model]) -> np.ndarray:
    """Return ``1 - ||U_i^T U_j||^2 / r``, U_i spanning what the root tier's B does; the mean over layers."""
    names = sorted(factors_of(sent[0]).values())
    alike = np.zeros((len(sent), len(sent)))
    for name in names:
        bases = [
            np.linalg.svd(tier(each, [name], ROOT)[name].double().numpy(), full_matrices=False)[0] for each in sent
        ]
        side = np.concatenate(bases, axis=1)
        rank = bases[0].shape[1]
        products = (side.T @ side).reshape(len(sent), rank, len(sent), rank)
        alike += (products**2).sum(axis=(1, 3)) / rank
    found = 1 - alike / len(names)
    np.fill_diagonal(found, 0)
    return np.clip(found, 0, None)


def cluster_by(apart: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Return each client's cluster, by spectral clustering of ``exp(-d^2 / (2 s^2))``, s the median distance."""
    width = np.median(apart[np.triu_indices(len(apart), 1)])
    alike = np.exp(-(apart**2) / (2 * max(width, 1e-12) ** 2))
    degrees = alike.sum(axis=1)
    values = np.linalg.eigvalsh(np.eye(len(alike)) - alike / np.sqrt(np.outer(degrees, degrees)))
    number = 2 + int(np.argmax(np.diff(values)[1:most]))  # after the second eigenvalue at the earliest
    return SpectralClustering(number, affinity="precomputed", random_state=seed).fit_predict(alike)
