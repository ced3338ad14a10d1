"""The experiments of many plans, which share clients, networks and, where possible, clusterings."""

from collections import OrderedDict
from dataclasses import replace

from atoll.clustering.clustering import Clustering
from atoll.clustering.named_clusterings import CLUSTERINGS
from atoll.experiment.experiment import Experiment
from atoll.settings.choices import method_needs
from atoll.settings.plugins import resolve
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings

_DONORS = 4  # experiments whose networks are kept; one per pattern if seconds come from files


class ProcessPool:
    """Makes experiments that reuse the parts of earlier ones."""

    def __init__(self) -> None:
        self._donors: OrderedDict[str, Experiment] = OrderedDict()
        self._clusterings: dict[str, Clustering] = {}

    def make(self, settings: Settings) -> Experiment:
        """Return a plan's experiment, with everything that earlier ones can share with it."""
        shares = [(donor, donor.beside(settings)) for donor in self._donors.values()]
        found = max(shares, key=lambda pair: _shared(*pair), default=(None, Experiment(settings)))[1]
        return replace(found, fixed_clustering=self._clusterings.get(_key(settings)))

    def keep(self, experiment: Experiment) -> None:
        """Let later experiments use what this one has made, except its schedule."""
        self._clusterings[_key(experiment.settings)] = experiment.clustering
        self._donors[_network_key(experiment.settings)] = experiment.beside(experiment.settings)
        self._donors.move_to_end(_network_key(experiment.settings))
        while len(self._donors) > _DONORS:
            self._donors.popitem(last=False)


def _network_key(settings: Settings) -> str:
    """Return a key of what a network depends on, roughly: too fine a key only means that it is made twice."""
    from_files = settings.network.file is not None
    return str((settings.seed, settings.data, settings.network, settings.method.get("pattern") if from_files else ""))


def _shared(one: Experiment, other: Experiment) -> int:
    """Return how many parts two experiments share."""
    return sum(getattr(one, part) is getattr(other, part) for part in ("clients", "initial", "conditions"))


def _key(settings: Settings) -> str:
    """Return a key of all that a clustering depends on: if it solves FedUC's problem, nearly everything."""
    rule = resolve("clustering.method", settings.clustering.method, CLUSTERINGS)
    own = (settings.seed, settings.data, settings.drift, settings.clustering, settings.faults, settings.model)
    pattern = asks_for(rule, "network") and settings.method.get("pattern")
    sent = (settings.network, settings.travel, settings.secure, pattern)
    if asks_for(rule, "problem") or asks_for(rule, "clock") or asks_for(rule, "rounds"):
        return str((*own, *sent, settings.rounds, settings.local, settings.method))
    return str((*own, *sent, method_needs(settings, "clustering")))
