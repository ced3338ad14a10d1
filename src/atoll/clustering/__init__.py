"""Clusterings: which clients aggregate together.

A clustering rule is one function; it returns a `Clustering`, or just the array of labels. A user's own rule is
named in the experiment file as ``method = "module:function"``; it may ask, by parameter name, for `population`,
`network`, `problem`, `clusters`, `rng`, any setting of ``[clustering]`` and any of its own in ``[clustering.options]``.
"""

from collections.abc import Callable

from atoll.clustering.aware import comaw, dataw
from atoll.clustering.base import Clustering, one_cluster, without_empty
from atoll.clustering.feduc import feduc
from atoll.clustering.problem import Problem
from atoll.clustering.simple import availability, even_slots, major_class, random, timezone

CLUSTERINGS: dict[str, Callable[..., Clustering]] = {
    "random": random,
    "timezone": timezone,
    "availability": availability,
    "major-class": major_class,
    "comaw": comaw,
    "dataw": dataw,
    "feduc": feduc,
}

__all__ = [
    "CLUSTERINGS",
    "Clustering",
    "Problem",
    "availability",
    "comaw",
    "dataw",
    "even_slots",
    "feduc",
    "major_class",
    "one_cluster",
    "random",
    "timezone",
    "without_empty",
]
