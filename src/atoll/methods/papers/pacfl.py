"""PACFL: clustering before training, by angles between clients' data subspaces (Vahidian et al. 2023)."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import Turn, agglomerate, apart
from atoll.methods.parts.principal_angles import Angle, distances_between, signatures
from atoll.schedules.events import Clock, Schedule
from atoll.schedules.timeline import cohort_size, draw_cohort
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.limits import NotNegative, Positive, Share
from atoll.support.seeds import generator

if TYPE_CHECKING:
    from torch import nn

Linkage = Literal["complete", "average", "single"]  # not Ward's, which needs Euclidean distances

_NUMBER_BYTES = 4  # per element of a singular vector, sent in float32 like the inputs


@checked
def pacfl(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    clusters: Positive = 4,
    vectors: Positive = 3,
    angle: Angle = "sum",
    linkage: Linkage = "average",
    threshold: NotNegative | None = None,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """PACFL: clients are clustered by a few singular vectors of their data; each cluster then runs FedAvg.

    Vahidian et al. 2023, "Efficient distribution similarity identification in clustered federated learning via
    principal angles between client data subspaces". Client i sends ``U_i``, the p leading left singular vectors of its
    inputs of each class. The distance of two clients is the smallest principal angle between all their vectors
    (`smallest`), or the sum of principal angles class by class (`sum`), with 90 degrees for each vector that the other
    client lacks; both are independent of the vectors' signs. Clustering is agglomerative; all clusters start from one
    model. The vectors, at four bytes per element, count as models sent in the first event, rounded up.

    Args:
        module: the model, whose size is the unit for counting the vectors.
        clusters: number of clusters; with a threshold, the maximum.
        vectors: singular vectors per class, p.
        angle: distance between two clients.
        linkage: distance between two clusters.
        threshold: clusters farther apart (degrees) are merged only while there are more than `clusters`; unset:
            merging stops at `clusters`.
        fraction: share of all clients in each cohort, regardless of cluster.

    Raises:
        InputError: more clusters than clients.
    """
    if clusters > len(population):
        raise InputError(f"method.clusters = {clusters}: must be at most data.clients = {len(population)}")
    bases = signatures(population, module, vectors)
    labels = np.zeros(len(population), np.int64)
    if len(labels) > 1:
        labels = agglomerate(distances_between(bases, angle), clusters, linkage, threshold)
    everyone = np.arange(len(labels))
    size = cohort_size(fraction, len(everyone))
    turns = [Turn(draw_cohort(everyone, size, generator(seed, "cohort", j)), j) for j in range(rounds)]
    schedule = apart(population, int(labels.max()) + 1, turns, rounds, clock, labels)
    return Method(_with_signatures(schedule, bases, module), rule, labels=labels)


def _with_signatures(schedule: Schedule, bases: Floats, module: "nn.Module") -> Schedule:
    """Return the schedule with the vectors counted in the first event, in units of models."""
    from atoll.local.weights import count_bytes

    numbers = int(bases.any(axis=2).sum()) * bases.shape[2]
    models = math.ceil(_NUMBER_BYTES * numbers / count_bytes(module.state_dict()))
    first = replace(schedule.events[0], models_up=schedule.events[0].models_up + models)
    return replace(schedule, events=(first, *schedule.events[1:]))
