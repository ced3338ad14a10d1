"""What is known of clients beside the settings."""

from dataclasses import dataclass

from atoll.clustering import Clustering
from atoll.network import Network
from atoll.population import Population


@dataclass(frozen=True, eq=False)
class Known:
    """What an experiment's plans are made by in the place of what its settings make.

    Attributes:
        population: as its clients report it. Training and probes on this machine do not go by it.
        clustering: None: made from the rest.
        network: None: the settings'.
    """

    population: Population
    clustering: Clustering | None = None
    network: Network | None = None
