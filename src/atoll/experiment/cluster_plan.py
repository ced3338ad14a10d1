"""The clustering from each round on, and the duration of everyone's work."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from atoll.clustering.clustering import Clustering, one_cluster
from atoll.clustering.feduc.problem import Problem
from atoll.clustering.feduc.summary import ClusteringSummary, make_plan
from atoll.clustering.feduc.time_budget import within
from atoll.experiment.clients import Clients
from atoll.experiment.clock import make_clock
from atoll.experiment.clusterings import make_clustering
from atoll.experiment.conditions import Conditions
from atoll.experiment.feduc_problem import make_problem
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.modules import make_rule
from atoll.experiment.networks import is_clustered_anew
from atoll.local.rule import LocalRule
from atoll.methods.papers.hierarchical import Phase
from atoll.schedules.events import Clock
from atoll.settings.choices import method_needs
from atoll.settings.validation import Settings


@dataclass(frozen=True, eq=False)
class ClusterPlan:
    """The clustering from each round on, and the duration of everyone's work; made on first use."""

    settings: Settings
    clients: Clients
    initial: InitialModel
    conditions: Conditions
    fixed: Clustering | None

    @cached_property
    def rule(self) -> LocalRule:
        """The local rule."""
        return make_rule(self.settings)

    @cached_property
    def clock(self) -> Clock:
        """The duration of each client's work."""
        clients, sizes = len(self.clients.dealt), self.clients.population.sizes
        made = make_clock(self.settings, clients, sizes, self.rule, self.initial.upload_share)
        availability = self.conditions.availability
        return made if availability is None else replace(made, pace=availability.pace)

    @cached_property
    def clustering(self) -> Clustering:
        """The clustering, the first one if clients move; a single cluster if the method uses none."""
        if self.fixed is not None:
            return self.fixed
        wanted = method_needs(self.settings, "clustering")
        return self._make_clustering(0) if wanted else one_cluster(len(self.clients.population))

    @cached_property
    def problem(self) -> Problem:
        """The input of FedUC's clustering, on the network of round 0."""
        conditions, module = self.conditions, deepcopy(self.initial.module)
        return make_problem(self.settings, conditions.reported, conditions.networks[0], module)

    @cached_property
    def summary(self) -> ClusteringSummary:
        """A summary of the clustering on the network of round 0."""
        wanted = self.settings.clustering
        seconds = wanted.get("seconds") if wanted.get("objective") == "time" else None
        problem = self.problem if seconds is None else within(self.problem, seconds)
        return make_plan(self.clients.population, self.clustering, problem)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The network and the clustering from each round on; one phase unless clients move."""
        networks = self.conditions.networks
        phases = [Phase(0, self.clustering, networks[0])]
        for round_, network in list(networks.items())[1:]:
            anew = is_clustered_anew(self.settings, round_)
            clustering = self._make_clustering(round_) if anew else phases[-1].clustering
            phases.append(Phase(round_, clustering, network))
        return tuple(phases)

    def samples_of_clusters(self, round_: int) -> npt.NDArray[np.int64]:
        """Return the number of samples in each cluster at this round, [clusters]."""
        phase = [phase for phase in self.phases if phase.round <= round_][-1]
        labels, sizes = phase.clustering.labels, self.conditions.reported.sizes
        return np.bincount(labels[labels >= 0], sizes[labels >= 0], phase.clustering.clusters).astype(np.int64)

    def _make_clustering(self, round_: int) -> Clustering:
        """Make the clustering on the network of a round."""
        offered = {
            "network": lambda: self.conditions.networks[round_],
            "problem": lambda: replace(self.problem, network=self.conditions.networks[round_]),
            "clock": lambda: self.clock,
        }
        return make_clustering(self.settings, self.conditions.reported, round_, offered)
