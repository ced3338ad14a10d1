"""Shared by methods with learned clusters: their schedule, and clustering of clients' results."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event, Mix, Schedule, make_event
from atoll.schedules.timeline import cohort_size, draw_cohort
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.seeds import generator

if TYPE_CHECKING:
    from torch import nn

Linkage = Literal["ward", "complete", "average", "single"]
PairwiseLinkage = Literal["complete", "average", "single"]  # not Ward's, which needs Euclidean distances

SENDING = "whose clusters are found from what every client sends"
"""Why such a method supports neither faults nor a fleet."""

COMMON = "@common"
"""What the names end with of tensors of a model that all clusters share, sent beside a cluster's own."""


@dataclass(frozen=True, eq=False)
class Turn:
    """One event of a method with learned clusters.

    Attributes:
        cohort: the clients that train, each from its own cluster's model.
        regroups: whether clients are clustered anew after it.
        asks: whether it only collects results for clustering and leaves models unchanged.
    """

    cohort: Ids
    round: int
    regroups: bool = False
    asks: bool = False


def newcomers_first(population: Population, rounds: int, fraction: float, seed: int, seen: Ids) -> Iterator[Turn]:
    """Yield each round's turn, after one that asks those of its cohort who were not `seen` before."""
    everyone = np.arange(len(population))
    new = ~np.isin(everyone, seen)
    for j in range(rounds):
        cohort = draw_cohort(everyone, cohort_size(fraction, len(everyone)), generator(seed, "cohort", j))
        if len(newcomers := cohort[new[cohort]]):
            yield Turn(newcomers, j, regroups=True, asks=True)
            new[newcomers] = False
        yield Turn(cohort, j)


def everyone_apart(population: Population, clusters: int, rounds: int, clock: Clock | None = None) -> Schedule:
    """Return the schedule of independent clusters, `apart`, in which all clients train and regroup in every round."""
    everyone = np.arange(len(population))
    return apart(population, clusters, (Turn(everyone, j, regroups=True) for j in range(rounds)), rounds, clock)


def apart(
    population: Population,
    clusters: int,
    turns: Iterable[Turn],
    rounds: int,
    clock: Clock | None = None,
    labels: Ids | None = None,
    asking: Clock | None = None,
) -> Schedule:
    """Return the schedule of independently training clusters: each client receives and returns its cluster's model.

    Args:
        clusters: maximum number of clusters.
        clock: clients' training and upload times; None: every event takes one second.
        labels: each client's cluster, if known before training.
        asking: the times of turns that ask, if they are others.
    """
    require_enough(population, clusters)
    active = tuple(range(clusters))
    goes_on = tuple((c, Mix(published=((c, 1.0),))) for c in active)
    events: list[Event] = []
    now = 0.0
    for index, turn in enumerate(turns):
        timed = asking if turn.asks and asking else clock
        began, now = now, now + (timed.event_seconds(turn.cohort, now) if timed else 1.0)
        known = np.zeros(len(population), np.int64) if turn.asks else labels
        events.append(
            make_event(
                index,
                turn.cohort,
                population.sizes[turn.cohort].astype(float),
                began,
                now,
                (0,) if turn.asks else active,
                round=turn.round,
                clusters=None if known is None else known[turn.cohort],
                server=None,
                starts=() if turn.asks else goes_on,
                regroups=turn.regroups,
            )
        )
    return Schedule(tuple(events), clusters, rounds, has_server=False)


def fedavg_apart(
    population: Population,
    rule: LocalRule,
    rounds: int,
    labels: Ids,
    fraction: float,
    clock: Clock | None,
    seed: int,
    sent: int,
    module: "nn.Module",
    model_bytes: int | None,
) -> Method:
    """Return FedAvg within clusters that were found before training, for which clients `sent` numbers of four bytes.

    They are counted in the first event, as models. Cohorts are drawn from all clients, whatever their cluster.
    """
    from atoll.local.weights import count_bytes  # late: reading settings needs no PyTorch

    turns = newcomers_first(population, rounds, fraction, seed, np.arange(len(labels)))
    schedule = apart(population, int(labels.max()) + 1, turns, rounds, clock, labels)
    first, *later = schedule.events
    models = math.ceil(4 * sent / (model_bytes or count_bytes(module.state_dict())))
    events = (replace(first, models_up=first.models_up + models), *later)
    return Method(replace(schedule, events=events), rule, labels=labels)


def require_enough(population: Population, clusters: int) -> None:
    """Require at most one cluster per client."""
    if clusters > len(population):
        raise InputError(f"method.clusters = {clusters}: must be at most data.clients = {len(population)}")


def common_of(start: Model) -> Model:
    """Return the model of what is common in a model that clients are sent; all of it, if nothing is."""
    return {name: start.get(f"{name}{COMMON}", own) for name, own in start.items() if "@" not in name}


def as_vectors(models: Sequence[Model]) -> Floats:
    """Return models as rows in float64, [models, numbers]: their floating-point tensors, concatenated by name."""
    names = sorted(name for name, each in models[0].items() if each.is_floating_point() and "@" not in name)
    return np.stack(
        [np.concatenate([model[name].double().cpu().numpy().ravel() for name in names]) for model in models]
    )


def normalised(rows: Floats) -> Floats:
    """Return the rows scaled to unit length; zero rows stay zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def cosine_distances(rows: Floats) -> Floats:
    """Return one minus each pair's cosine, in the order of `scipy.spatial.distance.pdist`; a zero row is 1 from any."""
    units = normalised(rows)
    return np.asarray((1 - np.clip(units @ units.T, -1, 1))[np.triu_indices(len(units), 1)])


def numbered(labels: Ids) -> Ids:
    """Return the same clusters, numbered in order of their first clients."""
    _, firsts, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(firsts))[inverse], np.int64)


def agglomerate(distances: Floats, clusters: int, linkage: Linkage, threshold: float | None = None) -> Ids:
    """Return each client's cluster by agglomerative clustering, down to a number of clusters or up to a threshold.

    Args:
        distances: pairwise distances in the order of `scipy.spatial.distance.pdist`; none: of one client.
        clusters: number of clusters; with a threshold, the maximum.
        threshold: clusters farther apart are merged only while there are too many.
    """
    from scipy.cluster import hierarchy

    if not len(distances):
        return np.zeros(1, np.int64)
    tree = hierarchy.linkage(distances, linkage)
    if threshold is not None:
        clusters = min(clusters, 1 + int(np.count_nonzero(tree[:, 2] > threshold)))
    return numbered(hierarchy.cut_tree(tree, [clusters])[:, 0])


def nearest_means(rows: Floats, clusters: int, seed: int) -> Ids:
    """Return each row's cluster by k-means, the best of ten initialisations."""
    from sklearn.cluster import KMeans

    return numbered(KMeans(clusters, n_init=10, random_state=seed % 2**32).fit_predict(rows))
