"""PACFL: clusters found before training, by the angles between what clients' data span (Vahidian et al. 2023)."""

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
from atoll.schedules.timeline import check_rounds, cohort_size, draw_cohort
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.limits import NotNegative, Positive, Share
from atoll.support.seeds import generator

if TYPE_CHECKING:
    from torch import nn

Linkage = Literal["complete", "average", "single"]  # not Ward's, which is of Euclidean distances alone

_NUMBER_BYTES = 4  # of a singular vector, sent as inputs are computed with


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
    """PACFL: clients send a few singular vectors of their data, are clustered by these, then FedAvg in each cluster.

    Vahidian et al. 2023, "Efficient distribution similarity identification in clustered federated learning via
    principal angles between client data subspaces". Client i sends ``U_i``, the p leading left singular vectors of its
    inputs of each class. The distance of two clients is the smallest principal angle between all that each sent
    (`smallest`), or the sum of the principal angles of class and class (`sum`), 90 degrees each for a vector of a class
    that the other lacks; singular vectors have no sign, so neither depends on it. Clusters by agglomeration; all begin
    from one model. The vectors, four bytes a number, count as models sent in the first event, rounded up.

    Args:
        population: the clients.
        rule: what a client does.
        rounds: T.
        module: the model; what vectors are measured in.
        clusters: number of clusters; with a threshold, the most.
        vectors: singular vectors of each class, p.
        angle: distance between two clients.
        linkage: distance between two clusters.
        threshold: clusters farther apart (degrees) are not merged, unless more than `clusters` would be left; unset:
            the number alone counts.
        fraction: share of all clients in a cohort, of whatever cluster they are.
        clock: how long clients take; None: every round takes a second.
        seed: what cohorts are drawn from.

    Raises:
        InputError: more clusters than clients.
    """
    check_rounds(rounds, fraction)
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
    """Return the schedule whose first event also counts the vectors, as models of as many bytes."""
    from atoll.local.weights import count_bytes

    numbers = int(bases.any(axis=2).sum()) * bases.shape[2]
    models = math.ceil(_NUMBER_BYTES * numbers / count_bytes(module.state_dict()))
    first = replace(schedule.events[0], models_up=schedule.events[0].models_up + models)
    return replace(schedule, events=(first, *schedule.events[1:]))
