"""Reported data that planning uses instead of simulated data."""

from dataclasses import dataclass

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.network.network import Network


@dataclass(frozen=True, eq=False)
class ReportedClients:
    """Reported data that planning uses instead of simulated data, but training and evaluation here do not.

    Attributes:
        population: as its clients report it.
        clustering: the clustering; None: made from the rest.
        network: the network; None: the settings'.
    """

    population: Population
    clustering: Clustering | None = None
    network: Network | None = None
