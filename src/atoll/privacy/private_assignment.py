"""Private choice of a client's cluster: by randomised response or the exponential mechanism."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.engine.assignment import least_or_none
from atoll.engine.cohorts import Executor
from atoll.local.models import Model
from atoll.privacy.mechanism import Mechanism, response_noise
from atoll.privacy.noise import Noise
from atoll.schedules.events import Event
from atoll.support.arrays import Floats, Ids


@dataclass(frozen=True, eq=False)
class ToldAtRandom:
    """Clients find their cluster by least loss, and report it randomised (`engine.assignment.Assignment`)."""

    mechanism: Mechanism
    noise: Noise

    def __call__(self, event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
        """Return the clusters that the clients report, and train in."""
        return self.tell(executor.losses(starts, event.cohort, event.round), event.index, event.cohort)

    def tell(self, losses: Floats, index: int, clients: Ids) -> Ids:
        """Return the clusters that clients report for an event, [clients], from their losses, [clients, clusters]."""
        wanted, clusters = self.mechanism, losses.shape[1]
        assert wanted.identity_epsilon is not None, "refused by `needs.require_hidden_choice`"
        if wanted.identity == "exponential":
            return draw_choices(losses, wanted.identity_epsilon, wanted.most_loss, self.noise, index, clients)
        return respond(least_or_none(losses), clusters, wanted.identity_epsilon, self.noise, index, clients)


def draw_choices(losses: Floats, epsilon: float, most_loss: float, noise: Noise, index: int, clients: Ids) -> Ids:
    """Return each client's choice by the exponential mechanism, [clients]: P(p) as exp(-epsilon loss_p / (2 B)).

    McSherry and Talwar 2007; drawn as the largest score with Gumbel noise. Losses are clamped to [0, B], so that
    changing a client's data makes no choice more than e^epsilon likelier; losses that are not finite count as B, the
    `most_loss`.
    """
    losses = np.clip(np.nan_to_num(losses, nan=most_loss, posinf=most_loss, neginf=most_loss), 0, most_loss)
    told = np.empty(len(losses), np.int64)
    for row, client in enumerate(clients.tolist()):
        uniform = _uniform(noise("client identity", index, client)(losses.shape[1]))
        gumbel = -np.log(-np.log(np.maximum(uniform, 2.0**-53)))
        told[row] = int(np.argmax(gumbel - epsilon * losses[row] / (2 * most_loss)))
    return told


def respond(choices: Ids, clusters: int, epsilon: float, noise: Noise, index: int, clients: Ids) -> Ids:
    """Return choices by k-ary randomised response (Kairouz et al. 2016), [clients]; k is `clusters`.

    A client without a choice (-1) draws one too, so that its silence reveals nothing.
    """
    anew = response_noise(clusters, epsilon)
    told = np.empty(len(choices), np.int64)
    for row, (client, choice) in enumerate(zip(clients.tolist(), choices.tolist(), strict=True)):
        first, second = _uniform(noise("client identity", index, client)(2))
        told[row] = int(second * clusters) if choice < 0 or first < anew else choice
    return told


def _uniform(normal: Floats) -> Floats:
    """Return uniform numbers in [0, 1) from standard normal ones."""
    from scipy.special import ndtr

    return np.asarray(np.minimum(ndtr(normal), 1 - 2.0**-53))
