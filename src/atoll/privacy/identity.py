"""Which cluster a client chose, told so that nobody can be sure: randomised response, or the exponential mechanism."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.engine.assignment import Assignment, least_loss
from atoll.engine.cohorts import Executor
from atoll.local.models import Model
from atoll.privacy.mechanism import Mechanism, response_noise
from atoll.privacy.noise import Noise
from atoll.schedules.events import Event
from atoll.support.arrays import Floats, Ids


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


@dataclass(frozen=True, eq=False)
class ExponentialMechanism:
    """Clients draw their cluster, the likelier the less its model's loss: P(p) as exp(-epsilon loss_p / (2 B)).

    McSherry and Talwar 2007, drawn by the largest of the scores with Gumbel noise. Losses are cut to 0 and B, so that
    no two clients' data can make an answer more than e^epsilon likelier; one that is not finite counts as B.

    Attributes:
        epsilon: of one choice, between any two clients' data.
        most_loss: B.
        noise: where the draws come from.
    """

    epsilon: float
    most_loss: float
    noise: Noise

    def __call__(self, event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
        """Return the clusters that the clients say, and train in."""
        losses = executor.losses(starts, event.cohort, event.round)
        return draw_choices(losses, self.epsilon, self.most_loss, self.noise, event)


def draw_choices(losses: Floats, epsilon: float, most_loss: float, noise: Noise, event: Event) -> Ids:
    """Return each client's choice by the exponential mechanism, [cohort], from its losses, [cohort, clusters]."""
    losses = np.clip(np.nan_to_num(losses, nan=most_loss, posinf=most_loss), 0, most_loss)
    told = np.empty(len(losses), np.int64)
    for row, client in enumerate(event.cohort.tolist()):
        uniform = _uniform(noise("client identity", event.index, client)(losses.shape[1]))
        gumbel = -np.log(-np.log(np.maximum(uniform, 2.0**-53)))
        told[row] = int(np.argmax(gumbel - epsilon * losses[row] / (2 * most_loss)))
    return told


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
    if mechanism.identity == "exponential":
        return ExponentialMechanism(mechanism.identity_epsilon, mechanism.most_loss, noise)
    return RandomisedResponse(mechanism.identity_epsilon, noise)


def _uniform(normal: Floats) -> Floats:
    """Return numbers uniform in [0, 1) of standard normal ones."""
    from scipy.special import ndtr

    return np.asarray(np.minimum(ndtr(normal), 1 - 2.0**-53))
