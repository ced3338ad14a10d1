"""Drift: which samples each client holds in each phase of a run.

A kind of drift is a function that returns a partition for each phase: one row per row of `concepts` [phases, clients].
A user's own is named as ``kind = "module:function"``; by parameter name it may ask for `labels`, `groups`, `classes`,
`owners`, `dataset`, `clients`, `concepts`, `rng`, `seed` and `deal`, a function of rows of the pool (None: all), a
number of parts and a key, which deals these rows out by ``data.partition`` (and anew for each key); its other
parameters are settings of ``[drift]``. The test samples are dealt out by the same function, a row per concept in use.
"""

from collections.abc import Callable, Sequence

import numpy as np

from atoll.data.dealing.class_counts import Indices
from atoll.data.dealing.ranges import Parts
from atoll.support.arrays import Ids
from atoll.support.errors import InputError

Deal = Callable[[Indices | None, int, int], Parts]


def none(concepts: Ids, deal: Deal) -> Sequence[Parts]:
    """Leave clients their samples."""
    return [deal(None, concepts.shape[1], 0)] * len(concepts)


def groups(groups: Indices, concepts: Ids, deal: Deal) -> Sequence[Parts]:
    """Give clients samples of the planted group that is their concept: a rotation, swapped labels, or the data's own.

    A group's samples are dealt out by ``data.partition`` among all clients that are ever in it, once for each phase.
    """
    found = np.empty(concepts.shape, object)
    planted = int(groups.max()) + 1
    if planted == 1:
        raise InputError("drift.kind = 'groups': the data has no groups; set data.rotations, data.swaps or data.group")
    if concepts.max() >= planted:
        told = f"drift.concepts: names the group {concepts.max()}"
        raise InputError(f"{told}, but the data has {planted} groups, 0 to {planted - 1}")
    for group in np.unique(concepts):
        rows, cells = np.flatnonzero(groups == group), np.argwhere(concepts == group)
        for (phase, client), part in zip(cells, deal(rows, len(cells), int(group)), strict=True):
            found[phase, client] = rows[part]
    return [list(row) for row in found]


def partition(concepts: Ids, deal: Deal) -> Sequence[Parts]:
    """Give clients their part of another deal: ``data.partition`` deals out the whole pool once for each concept."""
    dealt = {concept: deal(None, concepts.shape[1], concept) for concept in np.unique(concepts).tolist()}
    return [[dealt[concept][client] for client, concept in enumerate(row)] for row in concepts.tolist()]


DRIFTS: dict[str, Callable[..., Sequence[Parts]]] = {"none": none, "groups": groups, "partition": partition}


def draw_concepts(start: Ids, concepts: int, phases: int, share: float, rng: np.random.Generator) -> Ids:
    """Return each client's concept in each phase, [phases, clients]: each time a share of them moves to another."""
    found = [start]
    for _ in range(phases - 1):
        moving = rng.permutation(len(start))[: max(1, round(share * len(start)))]
        anew = found[-1].copy()
        anew[moving] = (anew[moving] + rng.integers(1, concepts, len(moving))) % concepts if concepts > 1 else 0
        found.append(anew)
    return np.stack(found)
