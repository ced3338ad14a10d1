"""What is done to what clients send, and what one release of it costs: the numbers, without the tensors."""

import math
from dataclasses import dataclass
from typing import Literal

from atoll.support.errors import InputError

Trust = Literal["server", "aggregator", "client"]
Adjacency = Literal["zero-out", "replace"]
Identity = Literal["response", "exponential"]


@dataclass(frozen=True)
class Cost:
    """What one client spends by taking part in one release, the worst that may happen.

    Attributes:
        gaussians: noise multipliers of the Gaussian mechanisms that its data enter, one each.
        adjacency: what the guarantee compares, see `Mechanism`.
        response: (noise, buckets) of the randomised response that a choice costs no more than, as dp-accounting counts
            them; between any two choices, whatever the adjacency. None: there is none.
    """

    gaussians: tuple[float, ...]
    adjacency: Adjacency = "zero-out"
    response: tuple[float, int] | None = None

    @property
    def is_private(self) -> bool:
        """Whether anything is hidden at all."""
        return all(self.gaussians)


@dataclass(frozen=True)
class Mechanism:
    """Clips what each client sends, and adds Gaussian noise where trust ends.

    A client's update is all that its model changed by, moments that travel with it included (times the learning rate,
    so that they are of the same size), as one vector.

    Attributes:
        trust: who sees what clients send before there is noise in it: the server, the cluster's aggregator, or nobody
            but the client.
        clip: the longest that an update may be, C.
        noise: the noise's standard deviation over C, in each coordinate of a sum of updates; by `client`, of an update.
        delta: the probability that epsilon may be exceeded with.
        epsilon: the budget of the worst client; None: there is none.
        adjacency: zero-out: a client's updates against zeros in their place; replace: against any others.
        samples_cap: clients weigh as their samples, to this many; None: all weigh alike.
        count_noise: the noise's standard deviation in what clusters that clients choose themselves are divided by.
        least_clients: such a cluster is divided by no less, whatever the noise says.
        clusters_are_public: who is in which cluster is no secret, though found from clients' data.
        identity_epsilon: epsilon of a client's choice of its cluster; None: no choice is sent.
        identity: how it is told: by k-ary randomised response, or drawn by the exponential mechanism on the losses.
        most_loss: losses above count as this, by which the exponential mechanism knows how far they can be apart.
        quantile: C moves to where this share of the updates need no clipping (Andrew et al. 2021); None: it is fixed.
        quantile_noise: the noise's standard deviation in the number of those that need none.
        quantile_rate: how fast C moves, eta: ``C <- C exp(-eta (share - quantile))``.
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
        """Refuse a budget that no run could keep, and a quantile without noise.

        Raises:
            InputError: names the settings.
        """
        if self.quantile is not None and self.quantile_noise is None:
            raise InputError("privacy.quantile_noise is not set, but privacy.quantile needs it")
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
        """Return what a release costs each client of its cohort.

        With zero-out adjacency a client moves the sum of weighted updates by no more than C, since none weighs more
        than 1; if it chooses its cluster it moves one of P blocks, so the vector of them all by no more than C, and the
        vector of counts by no more than 1; where C adapts, it moves the number of updates that need no clipping by half
        at most, since each counts as 1/2 or -1/2. With `replace` it is twice that, which dp-accounting counts itself.

        Args:
            clusters: P.
            chosen: whether clients choose their clusters.
            counted: whether the clients of each such cluster are counted.
        """
        if self.is_local:
            return Cost((self.noise,), self.adjacency, self.response(clusters) if chosen else None)
        counts = (self.count_noise or 0.0,) if counted else ()
        shares = () if self.quantile_noise is None or self.quantile is None else (2 * self.quantile_noise,)
        return Cost((self.noise, *counts, *shares), self.adjacency)

    def response(self, clusters: int) -> tuple[float, int]:
        """Return the response that a choice is, or, of the exponential mechanism, the worst one of its epsilon."""
        epsilon, buckets = self.identity_epsilon or 0.0, 2 if self.identity == "exponential" else clusters
        return response_noise(buckets, epsilon), buckets


def response_noise(clusters: int, epsilon: float) -> float:
    """Return the probability with which a choice is drawn anew, uniformly from all, that gives k-ary response epsilon.

    >>> round(response_noise(2, math.log(3)), 12)
    0.5
    """
    return clusters / (math.exp(epsilon) - 1 + clusters)


def response_epsilon(noise: float, clusters: int) -> float:
    """Return epsilon of k-ary response that draws anew with this probability: the inverse of `response_noise`.

    >>> round(response_epsilon(response_noise(4, 1.5), 4), 12)
    1.5
    """
    return math.log((1 - noise) * clusters / noise + 1)
