"""What a plan costs besides time: its clients' energy, and the price of sending."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.experiment.experiment import Experiment
from atoll.network.network import Network
from atoll.schedules.events import Event
from atoll.settings.choices import method_needs
from atoll.support.arrays import Floats, Ids


def training_joules(network: Network, labels: npt.NDArray[Any]) -> Floats | None:
    """Return each client's energy for one training if it answers, is late or drops out, [3, clients]; None if unknown.

    Late clients send nothing, and those that drop out only receive the model. A transfer counts for as long as it takes
    alone: sharing a link sends no more bits. `labels` holds each client's aggregator, or -1 for one left out.
    """
    if (power := network.power) is None:
        return None
    joules, own = np.zeros((3, network.clients)), np.flatnonzero(labels >= 0)
    down = 0.0 if network.download_seconds is None else network.download_seconds[own, labels[own]]
    joules[:, own] = (
        np.outer((1, 1, 0), power.computing[own] * network.compute_seconds[own])
        + np.outer((1, 0, 0), power.sending[own] * network.upload_seconds[own, labels[own]])
        + power.receiving[own] * down
    )
    return joules


def training_prices(network: Network, labels: npt.NDArray[Any]) -> Floats | None:
    """Return the price of each client's transfers for one training, [3, clients] as `training_joules`; None if unknown.

    `labels` holds each client's aggregator, or -1 for a client left out, which costs nothing.
    """
    if network.prices is None:
        return None
    own = np.flatnonzero(labels >= 0)
    paid = np.zeros((3, network.clients))
    paid[:, own] = (
        np.outer((1, 0, 0), network.prices.upload[own, labels[own]]) + network.prices.download[own, labels[own]]
    )
    return paid


def merge_prices(network: Network, labels: npt.NDArray[Any], has_server: bool) -> Floats | None:
    """Return the price of each aggregator's part in a merge, [aggregators]; None if unknown.

    This is the way to the server and back, shared where regions average, or, without a server, a model to each
    neighbour. `labels` are as for `training_prices`.
    """
    if network.prices is None:
        return None
    if has_server and network.regions is not None:
        return network.regions.paid(np.bincount(labels[labels >= 0], minlength=network.aggregators) > 0)
    if has_server:
        return network.prices.transfer + network.prices.back
    near = network.closed_neighbourhoods - np.eye(network.aggregators)
    return np.asarray((near * network.prices.exchange).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Spending:
    """The cost of one training and of one merge.

    Attributes:
        training: of each client that answers, is late, or drops out, [3, clients].
        merge: of each aggregator, [aggregators].
    """

    training: Floats
    merge: Floats

    def of_clusters(self, experiment: Experiment) -> Floats:
        """Return each cluster's cost over the whole schedule, with its aggregator's, [clusters]."""
        labels, clusters = experiment.clustering.labels, experiment.clustering.clusters
        spent, works = np.zeros(len(labels)), np.zeros(clusters)
        for event in experiment.method.schedule.events:
            for clients, costs in self._of_clients(event, labels):
                spent[clients] += costs
            works[list(event.active)] += 1
        own = labels >= 0
        return np.asarray(np.bincount(labels[own], spent[own], clusters) + works * self.merge)

    def by(self, experiment: Experiment, seconds: Floats) -> Floats:
        """Return the total cost up to each of these virtual times."""
        events, labels = experiment.method.schedule.events, experiment.clustering.labels
        each = (
            sum(costs.sum() for _, costs in self._of_clients(event, labels)) + self.merge[list(event.active)].sum()
            for event in events
        )
        sums = np.cumsum([0.0, *each])
        return np.asarray(sums[np.searchsorted([event.seconds for event in events], seconds, side="right")])

    def _of_clients(self, event: Event, labels: npt.NDArray[Any]) -> Iterator[tuple[Ids, Floats]]:
        """Yield clients and their costs in an event: those that answer, then the others, all alike on average."""
        yield event.cohort, self.training[0, event.cohort] * event.intra_rounds
        if event.late or event.dropped:
            others = np.setdiff1d(np.flatnonzero(np.isin(labels, event.active)), event.cohort)
            counts = np.array([event.late, event.dropped]) / max(1, len(others))
            yield others, counts @ self.training[1:, others] * event.intra_rounds


def energy_of(experiment: Experiment) -> Spending | None:
    """Return the clients' joules; None if their power is unknown."""
    if not method_needs(experiment.settings, "network"):
        return None
    joules = training_joules(experiment.conditions.networks[0], experiment.clustering.labels)
    return None if joules is None else Spending(joules, np.zeros(experiment.clustering.clusters))


def price_of(experiment: Experiment) -> Spending | None:
    """Return the price of sending, in the currency of `network.file`; None if it has no prices."""
    if not method_needs(experiment.settings, "network"):
        return None
    network, labels = experiment.conditions.networks[0], experiment.clustering.labels
    training = training_prices(network, labels)
    merge = merge_prices(network, labels, experiment.method.schedule.has_server)
    return None if training is None or merge is None else Spending(training, merge)
