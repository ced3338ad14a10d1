"""Trust models by name: functions whose parameters are the settings of ``[privacy]`` and fields of `Mechanism`."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from atoll.privacy.mechanism import Adjacency, Identity, Mechanism
from atoll.support.limits import BelowOne, NotNegative, Positive, PositiveFloat

Delta = Annotated[float, Field(gt=0, lt=1)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Choice = Annotated[float, Field(ge=1e-9, le=700, allow_inf_nan=False)]  # e^epsilon is a number, and not 1


def none() -> None:
    """Trust everyone: nothing is clipped, and no noise is added."""


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
        clip: largest Euclidean norm of a client's update, C; longer updates are scaled down
        noise: standard deviation of the noise over C, in each coordinate of a sum (client: of each update)
        delta: the probability with which epsilon may be exceeded
        epsilon: the budget: the run ends before a release that would exceed it for any client; unset: no budget
        adjacency: zero-out: compares a client's updates with zeros; replace: with any other updates
        samples_cap: clients are weighted by their samples, up to this number; unset: equally
        count_noise: if clients find their clusters, standard deviation of the noise in the number that found each
        least_clients: if clients find their clusters, lower bound on the divisor of a sum
        clusters_are_public: declare cluster assignments no secret, though they are found from clients' data
        quantile: clip is only the initial C, which adapts so that this share of updates is not clipped
        quantile_noise: standard deviation of the noise in the number of unclipped updates
        quantile_rate: step size of C
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
    """Trust the cluster's aggregator, not the server: each average in a cluster is noisy; merges add no noise."""
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
    identity_epsilon: Choice | None = None,
    identity: Identity = "response",
    most_loss: PositiveFloat = 3.0,
) -> Mechanism:
    """Trust no one: clients clip their updates and add noise before sending them.

    Args:
        identity_epsilon: if clients find their clusters, epsilon of each choice
        identity: how the choice is randomised: randomised response, or the exponential mechanism on the losses
        most_loss: cap on losses, for the exponential mechanism
    """
    return Mechanism("client", **locals())


TRUSTS: dict[str, Callable[..., Mechanism | None]] = {
    "none": none,
    "server": server,
    "aggregator": aggregator,
    "client": client,
}
