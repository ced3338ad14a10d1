"""The clients and their data."""

from dataclasses import dataclass
from functools import cached_property

from atoll.data.population import Population
from atoll.experiment.client_data import make_clients, make_test_clients
from atoll.experiment.drifting import drifting_clients, drifts
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call
from atoll.settings.validation import Settings


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients and their data; each population is made on first use.

    Attributes:
        settings: all settings, of which only the seed, the data, their drift and the method matter.
    """

    settings: Settings

    @property
    def dealt(self) -> Population:
        """The population that the partition makes."""
        return self._all[0]

    @property
    def new(self) -> Population | None:
        """Clients that never train (`data.held_out_clients`); None: there are none."""
        return self._all[1]

    @cached_property
    def _all(self) -> tuple[Population, Population | None]:
        return (self._drifting[0], None) if drifts(self.settings) else make_clients(self.settings)

    @cached_property
    def _drifting(self) -> tuple[Population, Population]:
        return drifting_clients(self.settings)

    @cached_property
    def test(self) -> Population:
        """Clients that hold the test samples."""
        return self._drifting[1] if self.dealt.later else make_test_clients(self.settings, self.dealt)

    def at(self, round_: int) -> "Clients":
        """Return the clients with the data that they hold in a round."""
        found = Clients(self.settings)
        vars(found).update(_all=(self.dealt.at(round_), self.new), test=self.test.at(round_))
        return found

    @cached_property
    def population(self) -> Population:
        """The population that trains: the clients, or one client that holds all samples."""
        make = method_kind(self.settings).population
        if make is None:
            return self.dealt
        return call("method.name", make, {**dict(self.settings.method), "population": self.dealt})  # type: ignore[no-any-return]

    def serve(self, settings: Settings) -> bool:
        """Return whether other settings make the same clients."""
        own = self.settings
        drifts(settings)  # which refuses methods that assume fixed data
        if (own.seed, own.data, own.drift) != (settings.seed, settings.data, settings.drift):
            return False
        makes = [method_kind(each).population for each in (own, settings)]
        return makes == [None, None] or own.method == settings.method
