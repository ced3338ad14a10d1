"""The clusterings by name.

A clustering rule is one function; it returns a `Clustering`, or just the array of labels. A user's own rule is
named in the experiment file as ``method = "module:function"``; by parameter name it can receive `population`,
`network`, `problem`, `clock`, `clusters`, `rounds`, `rng` and `seed`; its other parameters are
settings of ``[clustering]``.
"""

from collections.abc import Callable

from atoll.clustering.clustering import Clustering
from atoll.clustering.fedcluster_clusterings import availability, major_class, planted, random, timezone
from atoll.clustering.feduc.baselines import comaw, dataw
from atoll.clustering.feduc.feduc import feduc

CLUSTERINGS: dict[str, Callable[..., Clustering]] = {
    "random": random,
    "timezone": timezone,
    "availability": availability,
    "major-class": major_class,
    "planted": planted,
    "comaw": comaw,
    "dataw": dataw,
    "feduc": feduc,
}

WITHOUT_DATA = frozenset({random, timezone, availability, comaw})
"""Rules that do not use clients' samples, only chance, positions and times."""
