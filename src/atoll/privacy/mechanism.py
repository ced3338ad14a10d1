"""The parameters of the clipping and noise, and the privacy cost of one release; no tensors."""

import math
from dataclasses import dataclass
from typing import Literal

from atoll.support.errors import InputError

Trust = Literal["server", "aggregator", "client"]
Adjacency = Literal["zero-out", "replace"]
Identity = Literal["response", "exponential"]


@dataclass(frozen=True)
class Cost:
    """The worst-case cost to a client of taking part in one release.

    Attributes:
        gaussians: noise multiplier of each Gaussian mechanism that its data enter.
        adjacency: what the guarantee compares, see `Mechanism`.
        response: (noise, buckets), in dp-accounting's terms, of a randomised response that costs at least as much as a
            choice; compares any two choices, whatever the adjacency. None: there is no choice.
    """

    gaussians: tuple[float, ...]
    adjacency: Adjacency = "zero-out"
    response: tuple[float, int] | None = None

    @property
    def is_private(self) -> bool:
        """Whether there is any noise."""
        return all(self.gaussians)


@dataclass(frozen=True)
class Mechanism:
    """Clips clients' updates, and adds Gaussian noise where trust ends.

    A client's update is the change in its model, including communicated moments (times the learning rate, to match in
    size), as one vector. The other fields are the settings that `named_trusts` describes, None where they are unset.

    Attributes:
        trust: who sees updates before noise is added: the server, the cluster's aggregator, or only the client.
        quantile: C adapts so that this share of updates is not clipped (Andrew et al. 2021).
        quantile_rate: step size of C, eta: ``C <- C exp(-eta (share - quantile))``.
    """

    trust: Trust
    clip: float
    noise: float
    delta: float
    epsilon: float | None = None
    adjacency: Adjacency = "zero-out"
    samples_cap: int | None = None
    count_noise: float | None = None
    least_clients: float = 1.0
    clusters_are_public: bool = False
    identity_epsilon: float | None = None
    identity: Identity = "response"
    most_loss: float = 3.0
    quantile: float | None = None
    quantile_noise: float | None = None
    quantile_rate: float = 0.2

    def __post_init__(self) -> None:
        """Reject a budget that no run could keep, and a quantile without noise or the reverse."""
        if self.quantile is not None and self.quantile_noise is None:
            raise InputError("privacy.quantile_noise is not set, but privacy.quantile needs it")
        if self.quantile is None and self.quantile_noise is not None:
            raise InputError(f"privacy.quantile_noise = {self.quantile_noise:g}: needs privacy.quantile")
        if self.epsilon is not None and not self.noise:
            raise InputError(
                f"privacy.noise = 0: spends any privacy.epsilon = {self.epsilon:g} at once; must be more than 0 with a "
                "budget"
            )

    @property
    def is_local(self) -> bool:
        """Whether clients add the noise themselves."""
        return self.trust == "client"

    def cost(self, clusters: int, chosen: bool, counted: bool) -> Cost:
        """Return the cost of a release to each client of its cohort.

        With zero-out adjacency a client changes the sum of weighted updates by at most C, since no weight exceeds 1.
        If it chooses its cluster, it changes one of P blocks, so their concatenation by at most C, and the vector of
        counts by at most 1. If C adapts, it changes the number of unclipped updates by at most 1/2, since each counts
        as 1/2 or -1/2. With `replace` all of this doubles, which dp-accounting itself takes into account.
        """
        if self.is_local:
            return Cost((self.noise,), self.adjacency, self.response(clusters) if chosen else None)
        counts = (self.count_noise or 0.0,) if counted else ()
        shares = () if self.quantile_noise is None or self.quantile is None else (2 * self.quantile_noise,)
        return Cost((self.noise, *counts, *shares), self.adjacency)

    def response(self, clusters: int) -> tuple[float, int]:
        """Return a choice's randomised response; for the exponential mechanism, the worst one with its epsilon."""
        epsilon, buckets = self.identity_epsilon or 0.0, 2 if self.identity == "exponential" else clusters
        return response_noise(buckets, epsilon), buckets


def response_noise(clusters: int, epsilon: float) -> float:
    """Return the probability of replacing a choice by a uniform one that gives k-ary response this epsilon."""
    return clusters / (math.exp(epsilon) - 1 + clusters)


def response_epsilon(noise: float, clusters: int) -> float:
    """Return the epsilon of k-ary response with this probability of a uniform choice: inverts `response_noise`."""
    return math.log((1 - noise) * clusters / noise + 1)
