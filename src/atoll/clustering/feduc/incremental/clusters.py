"""Running sums of every cluster, without and with one more client."""

from dataclasses import dataclass

import numpy as np

from atoll.clustering.feduc.incremental.queues import Queues, SideBySide
from atoll.clustering.feduc.problem import Problem
from atoll.network.transfers import pattern_transfer_seconds
from atoll.support.arrays import Floats
from atoll.support.errors import InputError


@dataclass(frozen=True, eq=False)
class Offer:
    """Each cluster as it would be with one more client; arrays are over the aggregators.

    Attributes:
        samples: the client's own, d_i.
        total: samples of all clients placed, including this one.
        held: samples of the cluster, D_j.
        gamma: Gamma_j.
        completion_seconds: one intra-cluster aggregation (eq. 50).
        event_seconds: T' of those and the transfer.
    """

    samples: float
    total: float
    held: Floats
    gamma: Floats
    completion_seconds: Floats
    event_seconds: Floats


class Clusters:
    """The bound's terms of each cluster, over the clients placed so far; 0 for aggregators without clients.

    In CenSyn over links that aggregators share, a transfer takes as long as if all aggregators sent at once; `evaluate`
    knows who sends and when, so that it may give a clustering another bound than the greedy pass has gone by.

    Attributes:
        total: samples of all clients placed.
        held: D_j, [aggregators].
        gamma: Gamma_j, [aggregators].
        event_seconds: [aggregators].
    """

    def __init__(self, problem: Problem) -> None:
        network, aggregators = problem.network, problem.network.aggregators
        self._problem = problem
        self._queues = Queues(network) if network.sharing is None else SideBySide(network)
        self._transfer_seconds = pattern_transfer_seconds(network, problem.pattern)
        self._timed = problem.pattern.endswith("asy") or problem.seconds is not None
        self._penalties = client_penalties(problem)
        self._deviation_sums = np.zeros((aggregators, problem.deviations.shape[1]))
        self._penalty_sums = np.zeros(aggregators)
        self._offered: tuple[int, Offer] | None = None  # the last one, unless a client was placed since
        self.total = 0.0
        self.held, self.gamma, self.event_seconds = np.zeros((3, aggregators))

    def offer(self, client: int) -> Offer:
        """Return each cluster as it would be with the client."""
        if self._offered is not None and self._offered[0] == client:
            return self._offered[1]
        samples = float(self._problem.sizes[client])
        held = self.held + samples
        sums = self._deviation_sums + samples * self._problem.deviations[client]
        # xi_j = || sums_j / D_j ||^2, so one division by D_j comes before the penalties are added and one after.
        gamma = np.einsum("jk,jk->j", sums, sums)
        gamma *= self._problem.lr / 2
        gamma /= held
        gamma += self._penalty_sums + samples * self._penalties[client]
        gamma /= held
        completion = self._queues.candidates(client)
        is_free = self._problem.network.download_seconds is None
        intra = completion if is_free else completion + self._queues.downloads(client)
        events = self._problem.intra_rounds * intra + self._transfer_seconds
        if self._timed and events.min() <= 0:
            raise InputError(
                f"network: an event of aggregator {events.argmin()} with only client {client} takes 0 seconds; "
                "clustering for an asynchronous pattern or a given virtual time needs events that take time"
            )
        self._offered = client, Offer(samples, self.total + samples, held, gamma, completion, events)
        return self._offered[1]

    def place(self, client: int, aggregator: int) -> None:
        """Add the client to the cluster."""
        offer, self._offered = self.offer(client), None
        self.total = offer.total
        self.held[aggregator] = offer.held[aggregator]
        self.gamma[aggregator] = offer.gamma[aggregator]
        self.event_seconds[aggregator] = offer.event_seconds[aggregator]
        self._deviation_sums[aggregator] += offer.samples * self._problem.deviations[client]
        self._penalty_sums[aggregator] += offer.samples * self._penalties[client]
        self._queues.place(client, aggregator)


def client_penalties(problem: Problem) -> Floats:
    """Return the part of Gamma_j that is a mean over the cluster's clients, for each client, [clients].

    ``2 L^2 eta^2 (F_j* - f_i*) + L eta^2 g_i*``
    """
    scale = problem.smoothness * problem.lr**2
    penalties = np.full(problem.network.clients, 2 * problem.smoothness * scale * problem.cluster_optimum)
    if problem.optimal_losses is not None:
        penalties -= 2 * problem.smoothness * scale * problem.optimal_losses
    if problem.noise is not None:
        penalties += scale * problem.noise
    return penalties


def sums_of_others(values: Floats) -> Floats:
    """Return for each entry the sum of all others, along the last axis; nothing is subtracted, so nothing cancels."""
    sums = np.zeros_like(values)
    np.cumsum(values[..., :-1], axis=-1, out=sums[..., 1:])
    sums[..., :-1] += np.cumsum(values[..., :0:-1], axis=-1)[..., ::-1]
    return sums


def most_of_others(values: Floats) -> Floats:
    """Return for each entry the largest of all others, or 0; entries are not negative."""
    largest = int(values.argmax())
    most = np.full_like(values, values[largest])
    most[largest] = max(values[:largest].max(initial=0), values[largest + 1 :].max(initial=0))
    return most
