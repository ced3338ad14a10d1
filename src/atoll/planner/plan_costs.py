"""What a plan costs besides time: its clients' energy, and the price of sending."""

from dataclasses import dataclass

import numpy as np

from atoll.experiment.experiment import Experiment
from atoll.network.energy_prices import merge_prices, training_joules, training_prices
from atoll.settings.choices import method_needs
from atoll.support.arrays import Floats


@dataclass(frozen=True, eq=False)
class Spending:
    """The cost of one training and of one merge.

    Attributes:
        training: of each client, with its download and upload, [clients].
        merge: of each aggregator, [aggregators].
    """

    training: Floats
    merge: Floats

    def of_clusters(self, experiment: Experiment) -> Floats:
        """Return each cluster's cost over the whole schedule, with its aggregator's, [clusters]."""
        labels, clusters = experiment.clustering.labels, experiment.clustering.clusters
        times, works = np.zeros(len(labels)), np.zeros(clusters)
        for event in experiment.method.schedule.events:
            times[event.cohort] += event.intra_rounds
            works[list(event.active)] += 1
        own = labels >= 0
        return np.asarray(np.bincount(labels[own], (self.training * times)[own], clusters) + works * self.merge)

    def by(self, experiment: Experiment, seconds: Floats) -> Floats:
        """Return the total cost up to each of these virtual times."""
        events = experiment.method.schedule.events
        each = (
            self.training[event.cohort].sum() * event.intra_rounds + self.merge[list(event.active)].sum()
            for event in events
        )
        sums = np.cumsum([0.0, *each])
        return np.asarray(sums[np.searchsorted([event.seconds for event in events], seconds, side="right")])


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
