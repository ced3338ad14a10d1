"""Which cluster a client chose, told so that nobody can be sure: k-ary randomised response."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.engine.assignment import Assignment, least_loss
from atoll.engine.cohorts import Executor
from atoll.local.models import Model
from atoll.privacy.mechanism import Mechanism, response_noise
from atoll.privacy.noise import Noise
from atoll.schedules.events import Event
from atoll.support.arrays import Ids


@dataclass(frozen=True, eq=False)
class RandomisedResponse:
    """Clients find their cluster by least loss, and with some probability take one drawn from all in its place.

    A client whose losses are not finite draws too, so that it cannot be told by its silence.

    Attributes:
        epsilon: of one choice, between any two choices.
        noise: where the draws come from.
    """

    epsilon: float
    noise: Noise

    def __call__(self, event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
        """Return the clusters that the clients say, and train in."""
        return respond(least_loss(event, starts, executor), len(starts), self.epsilon, self.noise, event)


def respond(choices: Ids, clusters: int, epsilon: float, noise: Noise, event: Event) -> Ids:
    """Return choices by k-ary randomised response (Kairouz et al. 2016), [cohort]; each client draws its own."""
    anew = response_noise(clusters, epsilon)
    told = np.empty(len(choices), np.int64)
    for row, (client, choice) in enumerate(zip(event.cohort.tolist(), choices.tolist(), strict=True)):
        first, second = _uniform(noise("client identity", event.index, client)(2))
        told[row] = int(second * clusters) if choice < 0 or first < anew else choice
    return told


def told_at_random(mechanism: Mechanism, noise: Noise) -> Assignment:
    """Return how clients that trust nobody tell their cluster."""
    assert mechanism.identity_epsilon is not None, "refused by `requirements.refuse_unproven`"
    return RandomisedResponse(mechanism.identity_epsilon, noise)


def _uniform(normal: np.ndarray) -> np.ndarray:
    """Return numbers uniform in [0, 1) of standard normal ones."""
    from scipy.special import ndtr

    return np.minimum(ndtr(normal), 1 - 2.0**-53)
