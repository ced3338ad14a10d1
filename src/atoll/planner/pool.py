"""The experiments of many plans, which share clients, networks and, where possible, clusterings."""

from collections import OrderedDict

from atoll.clustering.clustering import Clustering
from atoll.clustering.named_clusterings import CLUSTERINGS
from atoll.experiment.experiment import Experiment
from atoll.settings.plugins import resolve
from atoll.settings.sections import Settings
from atoll.settings.signatures import asks_for

_DONORS = 4  # experiments whose networks are kept; one per pattern if seconds come from files


class ProcessPool:
    """Makes experiments that reuse the parts of earlier ones."""

    def __init__(self) -> None:
        """Start with nothing to share."""
        self._donors: OrderedDict[str, Experiment] = OrderedDict()
        self._clusterings: dict[str, Clustering] = {}

    def make(self, settings: Settings) -> Experiment:
        """Return a plan's experiment, with everything that earlier ones can share with it."""
        experiment = Experiment(settings)
        for donor in self._donors.values():
            experiment = self._richer(donor.beside(settings), experiment)
        known = self._clusterings.get(_key(experiment))
        if known is not None:
            vars(experiment)["clustering"] = known
        return experiment

    def keep(self, experiment: Experiment) -> None:
        """Let later experiments use what this one has made, except its schedule."""
        self._clusterings[_key(experiment)] = experiment.clustering
        bare = experiment.beside(experiment.settings)
        self._donors[_network_key(experiment.settings)] = bare
        self._donors.move_to_end(_network_key(experiment.settings))
        while len(self._donors) > _DONORS:
            self._donors.popitem(last=False)

    @staticmethod
    def _richer(one: Experiment, other: Experiment) -> Experiment:
        return one if len(vars(one)) > len(vars(other)) else other


def _network_key(settings: Settings) -> str:
    """Return a key of all that a network depends on; too fine a key only means that it is made twice."""
    from_files = settings.network.file is not None
    return str((settings.seed, settings.data, settings.network, settings.method.get("pattern") if from_files else ""))


def _key(experiment: Experiment) -> str:
    """Return a key of all that a clustering depends on: if it solves FedUC's problem, nearly everything."""
    settings = experiment.settings
    rule = resolve("clustering.method", settings.clustering.method, CLUSTERINGS)
    own = (settings.seed, settings.data, settings.clustering, settings.faults)
    if asks_for(rule, "problem") or asks_for(rule, "clock") or asks_for(rule, "rounds"):
        return str((*own, settings.rounds, settings.local, settings.method, settings.model, settings.network))
    return str((*own, settings.network, settings.model, experiment.needs("clustering")))
