"""Clusterings: which clients aggregate together.

A clustering rule is one function; it returns a `Clustering`, or just the array of labels. A user's own rule is
named in the experiment file as ``method = "module:function"``; it may ask, by parameter name, for `population`,
`clusters`, `rng`, any setting of ``[clustering]`` and any of its own in ``[clustering.options]``.
"""

from collections.abc import Callable

from atoll.clustering.base import Clustering, one_cluster
from atoll.clustering.simple import availability, even_slots, major_class, random, timezone

CLUSTERINGS: dict[str, Callable[..., Clustering]] = {
    "random": random,
    "timezone": timezone,
    "availability": availability,
    "major-class": major_class,
}

__all__ = [
    "CLUSTERINGS",
    "Clustering",
    "availability",
    "even_slots",
    "major_class",
    "one_cluster",
    "random",
    "timezone",
]
