"""Who is trusted, by name: functions whose parameters are the settings of ``[privacy]``, and fields of `Mechanism`."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from atoll.privacy.mechanism import Adjacency, Identity, Mechanism
from atoll.support.limits import BelowOne, NotNegative, Positive, PositiveFloat

Delta = Annotated[float, Field(gt=0, lt=1)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]


def none() -> None:
    """Everybody is trusted: nothing is clipped, and no noise is added."""


def server(
    clip: PositiveFloat,
    noise: NotNegative,
    delta: Delta = 1e-5,
    epsilon: PositiveFloat | None = None,
    adjacency: Adjacency = "zero-out",
    samples_cap: Positive | None = None,
    count_noise: PositiveFloat | None = None,
    least_clients: AtLeastOne = 1.0,
    clusters_are_public: bool = False,
    quantile: BelowOne | None = None,
    quantile_noise: PositiveFloat | None = None,
    quantile_rate: PositiveFloat = 0.2,
) -> Mechanism:
    """Trust the server: it sees each client's update, clips it, and adds noise to each cluster's sum.

    Args:
        clip: the longest that a client's update may be, as a Euclidean norm, C; longer ones are scaled down
        noise: standard deviation of the noise over C, in each coordinate of a sum (client: of each update)
        delta: the probability that epsilon may be exceeded with
        epsilon: the budget: the run ends before the release that would exceed it, for any client; unset: none
        adjacency: zero-out: a client's updates against zeros in their place; replace: against any other updates
        samples_cap: clients weigh as their samples, but as no more than this; unset: all weigh alike
        count_noise: where clients find their clusters, the noise's standard deviation in the number that found each
        least_clients: where clients find their clusters, a sum is divided by no less
        clusters_are_public: say that it is no secret who is in which cluster, though found from clients' data
        quantile: clip is only the first C; it moves to where this share of the updates need no clipping
        quantile_noise: standard deviation of the noise in the number of updates that need none
        quantile_rate: how fast C moves
    """
    return Mechanism("server", **locals())


def aggregator(
    clip: PositiveFloat,
    noise: NotNegative,
    delta: Delta = 1e-5,
    epsilon: PositiveFloat | None = None,
    adjacency: Adjacency = "zero-out",
    samples_cap: Positive | None = None,
    clusters_are_public: bool = False,
    quantile: BelowOne | None = None,
    quantile_noise: PositiveFloat | None = None,
    quantile_rate: PositiveFloat = 0.2,
) -> Mechanism:
    """Trust the cluster's aggregator, not the server: each average in a cluster has noise; merges add none."""
    return Mechanism("aggregator", **locals())


def client(
    clip: PositiveFloat,
    noise: NotNegative,
    delta: Delta = 1e-5,
    epsilon: PositiveFloat | None = None,
    adjacency: Adjacency = "zero-out",
    samples_cap: Positive | None = None,
    least_clients: AtLeastOne = 1.0,
    clusters_are_public: bool = False,
    identity_epsilon: PositiveFloat | None = None,
    identity: Identity = "response",
    most_loss: PositiveFloat = 3.0,
) -> Mechanism:
    """Trust nobody: clients clip their updates and add noise to them before they send them.

    Args:
        identity_epsilon: where clients find their clusters, epsilon of each choice
        identity: how the choice is told: by randomised response, or drawn by the exponential mechanism on the losses
        most_loss: exponential: losses above count as this
    """
    return Mechanism("client", **locals())


TRUSTS: dict[str, Callable[..., Mechanism | None]] = {
    "none": none,
    "server": server,
    "aggregator": aggregator,
    "client": client,
}
