"""What a clustering is, and the check of a rule's arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ParamSpec, TypeVar

import numpy as np

from atoll.data.array_inputs import as_whole
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.requiring import check_arguments, require

P = ParamSpec("P")
R = TypeVar("R")

_OBJECTS = ("population", "network", "problem", "clock", "rng")


@dataclass(frozen=True, eq=False)
class Clustering:
    """Which cluster each client belongs to.

    Attributes:
        labels: int64 [clients], the client's cluster from 0 to ``clusters - 1``, or -1 for a client left out.
        clusters: number of clusters.
        hours: UTC time of day (hours) at which each cluster trains, ascending; None for any time.
    """

    labels: Ids
    clusters: int
    hours: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Accept labels of any whole-number type, and refuse those out of range."""
        labels = as_whole("clustering: labels", self.labels)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "clusters", require("clustering.clusters", self.clusters, Positive))
        if len(labels) and not -1 <= labels.min() <= labels.max() < self.clusters:
            told = f"-1 (left out) to {self.clusters - 1}"
            found = f"they are from {labels.min()} to {labels.max()} (clustering.clusters = {self.clusters})"
            raise InputError(f"clustering: labels must be from {told}; {found}")
        if self.hours is not None and len(self.hours) != self.clusters:
            raise InputError(f"clustering: {len(self.hours)} times of day for {self.clusters} clusters")

    def __repr__(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        out = f", {len(self.left_out):,} left out" if len(self.left_out) else ""
        return f"Clustering({self.clusters:,} clusters of {len(self.labels):,} clients, {each} in each{out})"

    @cached_property
    def _members(self) -> list[Ids]:
        order = np.argsort(self.labels, kind="stable")
        begin = np.searchsorted(self.labels[order], np.arange(self.clusters + 1))
        return [order[begin[j] : begin[j + 1]] for j in range(self.clusters)]

    def members(self, cluster: int) -> Ids:
        """Return the clients of one cluster, ascending."""
        return self._members[cluster]

    @cached_property
    def sizes(self) -> Ids:
        """Number of clients in each cluster, [clusters]."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.clusters)

    @property
    def left_out(self) -> Ids:
        """The clients that belong to no cluster, ascending."""
        return np.flatnonzero(self.labels < 0)


def without_empty(clustering: Clustering) -> Clustering:
    """Return the clustering without its empty clusters, the others renumbered in order."""
    kept = np.flatnonzero(clustering.sizes)
    if len(kept) == clustering.clusters:
        return clustering
    labels = np.where(clustering.labels < 0, -1, np.searchsorted(kept, clustering.labels))
    return Clustering(labels, len(kept), clustering.hours and tuple(clustering.hours[c] for c in kept))


def one_cluster(clients: int) -> Clustering:
    """Return the clustering with all clients in one cluster."""
    return Clustering(np.zeros(clients, np.int64), 1)


def checked_rule(rule: Callable[P, R]) -> Callable[P, R]:
    """Return the clustering rule with its arguments checked first; it raises an `InputError` if one is wrong."""
    return check_arguments(
        rule, lambda name: name if name in _OBJECTS else f"clustering.{name}", {"clusters": Positive}
    )
