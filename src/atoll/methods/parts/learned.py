"""What methods with learned clusters share: their schedule, and clusterings of what clients send."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll.data.population import Population
from atoll.local.models import Model
from atoll.schedules.events import Clock, Event, Mix, Schedule, make_event
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

Linkage = Literal["ward", "complete", "average", "single"]

SENDING = "whose clusters are found from what every client sends"
"""Why such a method can have neither faults nor a fleet."""


@dataclass(frozen=True, eq=False)
class Turn:
    """One event of a method with learned clusters.

    Attributes:
        cohort: who trains, each from its own cluster's model.
        round: its round.
        regroups: whether clients' clusters are found anew after it.
        asks: whether it serves that alone: clients send what the clusters are found from, and models stay.
    """

    cohort: Ids
    round: int
    regroups: bool = False
    asks: bool = False


def apart(
    population: Population,
    clusters: int,
    turns: Iterable[Turn],
    rounds: int,
    clock: Clock | None = None,
    labels: Ids | None = None,
) -> Schedule:
    """Return the schedule in which clusters train apart: each client is sent its cluster's model, and returns it.

    Args:
        population: the clients.
        clusters: the most clusters that there can be.
        turns: the events.
        rounds: rounds that they make up.
        clock: how long clients take; None: every event takes a second.
        labels: each client's cluster, where it is known before training.

    Raises:
        InputError: more clusters than clients.
    """
    if clusters > len(population):
        raise InputError(f"method.clusters = {clusters}: must be at most data.clients = {len(population)}")
    active = tuple(range(clusters))
    goes_on = tuple((c, Mix(published=((c, 1.0),))) for c in active)
    events: list[Event] = []
    now = 0.0
    for index, turn in enumerate(turns):
        began, now = now, now + (clock.event_seconds(turn.cohort, now) if clock else 1.0)
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


def as_vectors(models: Sequence[Model]) -> Floats:
    """Return models as rows, [models, numbers]: their real tensors by name, one after the other, in float64."""
    names = sorted(name for name, tensor in models[0].items() if tensor.is_floating_point())
    return np.stack(
        [np.concatenate([model[name].double().cpu().numpy().ravel() for name in names]) for model in models]
    )


def normalised(rows: Floats) -> Floats:
    """Return rows of unit length; one of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def numbered(labels: Ids) -> Ids:
    """Return the same clusters, numbered by their first client.

    >>> numbered(np.array([2, 2, 0, 1]))
    array([0, 0, 1, 2])
    """
    _, firsts, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(firsts))[inverse], np.int64)


def agglomerate(distances: Floats, clusters: int, linkage: Linkage, threshold: float | None = None) -> Ids:
    """Return each client's cluster by agglomerative clustering: as many clusters, or those that a threshold leaves.

    Args:
        distances: of every pair, as `scipy.spatial.distance.pdist` has them; at least one.
        clusters: how many are left; with a threshold, at most so many.
        linkage: distance between clusters: ward, complete, average or single.
        threshold: clusters farther apart are not merged, unless there would be too many.
    """
    from scipy.cluster import hierarchy

    tree = hierarchy.linkage(distances, linkage)
    if threshold is not None:
        clusters = min(clusters, 1 + int(np.count_nonzero(tree[:, 2] > threshold)))
    return numbered(hierarchy.cut_tree(tree, [clusters])[:, 0])


def nearest_means(rows: Floats, clusters: int, seed: int) -> Ids:
    """Return each row's cluster by k-means, the best of ten starts."""
    from sklearn.cluster import KMeans

    return numbered(KMeans(clusters, n_init=10, random_state=seed).fit_predict(rows))
