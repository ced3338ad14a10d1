"""What a node reports only with noise: samples, classes, losses, and choices of clusters."""

import math
from dataclasses import dataclass

import numpy as np
from pydantic import ConfigDict

from atoll.privacy.mechanism import Adjacency, Cost, Mechanism
from atoll.privacy.noise import from_system
from atoll.privacy.private_assignment import ToldAtRandom
from atoll.support.arrays import Floats, Ids
from atoll.support.limits import Positive, PositiveFloat
from atoll.support.requiring import require_fields


@dataclass(frozen=True)
class Hidden:
    """How reported numbers are made private: clipped, with Gaussian noise added.

    Attributes:
        noise: standard deviation relative to the clipping bound, z.
        most_samples: bound on a client's samples, B, and on the norm of its class counts.
        most_loss: bound on losses; None: losses are reported unchanged.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    noise: PositiveFloat
    most_samples: Positive
    most_loss: PositiveFloat | None = None

    def __post_init__(self) -> None:
        """Reject values that hide nothing."""
        require_fields(self, "reports.")

    @property
    def cost(self) -> Cost:
        """Privacy cost to the client of reporting any of these."""
        return Cost((self.noise,))

    def cost_of_counts(self, adjacency: Adjacency) -> Cost:
        """Return the cost of class counts: without the client they change by up to B, with other data by sqrt(2) B."""
        return Cost((self.noise / math.sqrt(2),)) if adjacency == "replace" else self.cost

    def samples(self, samples: int) -> int:
        """Return the noisy number of samples, at least 1."""
        return max(int(self.counts(np.array([samples]))[0]), 1)

    def counts(self, counts: Ids) -> Ids:
        """Return noisy counts, none negative and at least one positive, [classes]."""
        length = float(np.linalg.norm(counts))
        cut = counts * min(1.0, self.most_samples / length) if length else counts.astype(float)
        noisy = np.rint(cut + self._drawn(len(counts), self.most_samples))
        told = np.clip(noisy, 0, None).astype(np.int64)
        return told if told.any() else np.ones_like(told)

    def losses(self, losses: Floats) -> Floats:
        """Return noisy losses, [models]; a non-finite one counts as the bound."""
        most = self.most_loss
        assert most is not None, "asked for only where losses are hidden"
        cut = np.clip(np.nan_to_num(losses, nan=most, posinf=most, neginf=most), 0, most)
        return np.asarray(cut + self._drawn(len(cut), most * np.sqrt(len(cut))))

    def _drawn(self, count: int, longest: float) -> Floats:
        return from_system("reports")(count) * self.noise * longest


@dataclass(frozen=True)
class Choosing:
    """How a client that trusts nobody reports losses: 0 for one cluster chosen at random, 1 for the others.

    The server takes the least, so it learns that choice and nothing else.
    """

    mechanism: Mechanism
    clusters: int

    @property
    def cost(self) -> Cost:
        """Privacy cost of an answer to the client."""
        return Cost((), self.mechanism.adjacency, self.mechanism.response(self.clusters))

    def losses(self, losses: Floats) -> Floats:
        """Return what is reported instead of the losses of all clusters' models, [clusters]."""
        (told,) = ToldAtRandom(self.mechanism, from_system).tell(losses[None], 0, np.zeros(1, np.int64))
        return np.asarray(np.arange(len(losses)) != told, np.float64)
