"""The conditions that clients train under: what they report, when they are available, and their networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.experiment.clients import Clients
from atoll.experiment.faults import as_claimed, make_availability
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.networks import is_same_network, make_networks
from atoll.faults.availability import Availability
from atoll.network.network import Network
from atoll.settings.validation import Settings


@dataclass(frozen=True, eq=False)
class ReportedClients:
    """Reported data that planning uses instead of simulated data, but training and evaluation here do not.

    Attributes:
        population: as its clients report it.
        clustering: the clustering; None: made from the rest.
        network: the network; None: the settings'.
        later: the same from later rounds on; grows while a run on a fleet is clustered anew.
    """

    population: Population
    clustering: Clustering | None = None
    network: Network | None = None
    later: "Sequence[tuple[int, ReportedClients]]" = ()


@dataclass(frozen=True, eq=False)
class Conditions:
    """The conditions that clients train under, each made on first use."""

    settings: Settings
    clients: Clients
    initial: InitialModel
    known: ReportedClients | None = None

    @cached_property
    def reported(self) -> Population:
        """The population as its clients report it, from which clusterings and schedules are made."""
        return as_claimed(self.settings, self.clients.population) if self.known is None else self.known.population

    @cached_property
    def availability(self) -> Availability | None:
        """When clients are available, and how their speeds change; None: always available, at constant speed."""
        return make_availability(self.settings, len(self.clients.population))

    @cached_property
    def networks(self) -> dict[int, Network]:
        """The network from round 0 on, and, if clients move, from each round that changes something."""
        if self.known is not None and self.known.network is not None:
            return {0: self.known.network}
        model_bytes = self.initial.bytes_without(self.initial.stays)
        sizes = (self.known or self.clients).population.sizes  # attackers compute on what they have, not claim
        return make_networks(self.settings, sizes, model_bytes, self.initial.upload_share)

    def serve(self, settings: Settings) -> bool:
        """Return whether other settings with the same clients and model make the same conditions."""
        own = self.settings
        return own.faults == settings.faults and is_same_network(own, settings)
