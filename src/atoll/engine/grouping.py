"""Learned clusters, and checks of the rules that find them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.engine.server_rule import is_model
from atoll.local.models import Model, form_of, without_moments
from atoll.support.arrays import Ids
from atoll.support.errors import RunError


@dataclass(frozen=True, eq=False)
class Grouping:
    """Clusters found during a run. A cluster may be empty.

    Attributes:
        labels: each client's cluster, [clients], integers from 0; -1: none yet, so that it cannot train.
        models: the model that each named cluster continues from; other clusters keep theirs.
    """

    labels: Ids
    models: Mapping[int, Model] = field(default_factory=dict)


def read_grouping(made: Any, clients: int, starts: Sequence[Model], where: str) -> Grouping:
    """Return a rule's result, a `Grouping` or labels alone, as a grouping.

    Args:
        where: the beginning of error messages.
    """
    found = made if isinstance(made, Grouping) else Grouping(made)
    if fault := why_no_labels(found.labels, clients, len(starts)):
        raise RunError(f"{where} {fault}")
    if not (isinstance(found.models, Mapping) and all(map(is_model, found.models.values()))):
        raise RunError(f"{where} must give models as a dict, with a dict of tensors for each cluster")
    if unknown := [cluster for cluster in found.models if cluster not in range(len(starts))]:
        raise RunError(f"{where} gave a model to cluster {unknown[0]!r}, but clusters are 0 to {len(starts) - 1}")
    form = without_moments(form_of(starts[0]))
    if others := [cluster for cluster, model in found.models.items() if without_moments(form_of(model)) != form]:
        raise RunError(f"{where} gave cluster {others[0]} a model with other names, shapes or types than the run's")
    return Grouping(np.asarray(found.labels).astype(np.int64), found.models)


def why_no_labels(labels: Any, clients: int, clusters: int) -> str:
    """Return why these are no labels for this number of clients and clusters; empty if they are."""
    array = np.asarray(labels)
    if array.shape != (clients,) or not np.issubdtype(array.dtype, np.integer):
        return (
            f"gave {array.dtype} of shape {list(array.shape)}: must be whole numbers, one for each of {clients} clients"
        )
    if clients and not -1 <= array.min() <= array.max() < clusters:
        return (
            f"gave labels from {array.min()} to {array.max()}: must be from 0 to {clusters - 1}, or -1 for none "
            f"yet, as the schedule has {clusters} clusters"
        )
    return ""
