"""What a plan takes besides time: its clients' joules, and the price of what is sent."""

from dataclasses import dataclass

import numpy as np

from atoll.experiment.experiment import Experiment
from atoll.network.energy import training_joules
from atoll.network.prices import merge_prices, training_prices
from atoll.settings.choices import method_needs
from atoll.support.arrays import Floats


@dataclass(frozen=True, eq=False)
class Spending:
    """What one training and one merge take.

    Attributes:
        training: of each client, with its download and upload, [clients].
        merge: of each aggregator, [aggregators].
    """

    training: Floats
    merge: Floats

    def of_clusters(self, experiment: Experiment) -> Floats:
        """Return what each cluster takes in the whole schedule, its aggregator included, [clusters]."""
        labels, clusters = experiment.clustering.labels, experiment.clustering.clusters
        times, works = np.zeros(len(labels)), np.zeros(clusters)
        for event in experiment.method.schedule.events:
            times[event.cohort] += event.intra_rounds
            works[list(event.active)] += 1
        own = labels >= 0
        return np.asarray(np.bincount(labels[own], (self.training * times)[own], clusters) + works * self.merge)

    def by(self, experiment: Experiment, seconds: Floats) -> Floats:
        """Return what all have taken by these virtual times, as `seconds`."""
        events = experiment.method.schedule.events
        each = (
            self.training[event.cohort].sum() * event.intra_rounds + self.merge[list(event.active)].sum()
            for event in events
        )
        sums = np.cumsum([0.0, *each])
        return np.asarray(sums[np.searchsorted([event.seconds for event in events], seconds, side="right")])


def energy_of(experiment: Experiment) -> Spending | None:
    """Return the clients' joules; None where their power is not known."""
    if not method_needs(experiment.settings, "network"):
        return None
    joules = training_joules(experiment.conditions.networks[0], experiment.clustering.labels)
    return None if joules is None else Spending(joules, np.zeros(experiment.clustering.clusters))


def price_of(experiment: Experiment) -> Spending | None:
    """Return what sending costs, in the currency of `network.file`; None where it does not say."""
    if not method_needs(experiment.settings, "network"):
        return None
    network, labels = experiment.conditions.networks[0], experiment.clustering.labels
    training = training_prices(network, labels)
    merge = merge_prices(network, labels, experiment.method.schedule.has_server)
    return None if training is None or merge is None else Spending(training, merge)
