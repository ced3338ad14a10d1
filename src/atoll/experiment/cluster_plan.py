"""The clustering from each round on, and the duration of everyone's work."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.clustering.clustering import Clustering, one_cluster
from atoll.clustering.feduc.problem import Problem
from atoll.clustering.feduc.summary import ClusteringSummary, make_plan
from atoll.clustering.feduc.time_budget import within
from atoll.clustering.named_clusterings import CLUSTERINGS
from atoll.experiment.clients import Clients
from atoll.experiment.conditions import Conditions
from atoll.experiment.feduc_problem import make_problem
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.modules import make_rule
from atoll.experiment.network_clients import NetworkClients
from atoll.experiment.networks import is_clustered_anew
from atoll.local.rule import LocalRule
from atoll.methods.papers.hierarchical import Phase
from atoll.schedules.clock import Clock
from atoll.settings.choices import method_needs, uses_network
from atoll.settings.plugins import call, resolve
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, reading
from atoll.support.seeds import generator


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
        """The duration of each client's work: training, and an upload as long as an update is relative to the model."""
        settings, sizes = self.settings, self.clients.population.sizes
        local, deadline = settings.local, settings.faults.deadline_seconds
        parts = 2 * settings.rounds if settings.method.get("resample") else 1
        batch = sizes / parts if local.batch_size == "full" else np.full(len(sizes), local.batch_size)
        clients, availability = len(self.clients.dealt), self.conditions.availability
        known = NetworkClients(settings, clients)
        zeta, sending = known.speeds, known.uploads
        if len(sizes) != clients:  # pooled data belong to no one client
            zeta, sending = np.full(len(sizes), zeta.mean()), np.full(len(sizes), sending.mean())
        different = np.unique(sizes)
        steps = np.array([self.rule.steps_of(size) for size in different.tolist()])[np.searchsorted(different, sizes)]
        compute = np.asarray(batch * steps * zeta, float)
        made = Clock(compute, sending * self.initial.upload_share, np.inf if deadline is None else deadline)
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
        clustering = [phase.clustering for phase in self.phases if phase.round <= round_][-1]
        sizes, known = self.conditions.reported.sizes, self.conditions.known
        for since, told in known.later if known else ():
            if since <= round_:
                clustering, sizes = told.clustering or clustering, told.population.sizes
        is_in = clustering.labels >= 0
        return np.bincount(clustering.labels[is_in], sizes[is_in], clustering.clusters).astype(np.int64)

    def _make_clustering(self, round_: int) -> Clustering:
        """Return the clustering from this round on, on its network; each round draws its own random numbers.

        On a network an aggregator may have no clients.
        """
        settings, population = self.settings, self.conditions.reported
        wanted, may_empty = settings.clustering, uses_network(settings)
        rule = resolve("clustering.method", wanted.method, CLUSTERINGS)
        is_unset = wanted.clusters == type(wanted).model_fields["clusters"].default
        is_counted = is_unset and not may_empty and ":" in wanted.method and not asks_for(rule, "clusters")
        if not (may_empty or is_counted) and wanted.clusters > len(population):
            told = f"clustering.clusters = {wanted.clusters}:"
            raise InputError(f"{told} must be at most data.clients = {len(population)}")
        given: dict[str, Any] = {
            **dict(wanted),
            "population": population,
            "rng": generator(settings.seed, "clustering", *((round_,) if round_ else ())),
            "rounds": settings.rounds,
            "seed": settings.seed,
        }
        made_if_asked: dict[str, Callable[[], Any]] = {
            "network": lambda: self.conditions.networks[round_],
            "problem": lambda: replace(self.problem, network=self.conditions.networks[round_]),
            "clock": lambda: self.clock,
        }
        given |= {name: make() for name, make in made_if_asked.items() if asks_for(rule, name)}
        made = call("clustering.method", rule, given, wanted.model_extra)
        return read_clustering(made, wanted.clusters, wanted.method, len(population), may_empty, is_counted)


def read_clustering(
    made: Any, clusters: int, name: str, clients: int, may_empty: bool, is_counted: bool = False
) -> Clustering:
    """Return a clustering of these clients, made from a `Clustering` or from labels.

    With `is_counted` there are as many clusters as the labels name, at most `clusters`.
    """
    with reading(f"clustering.method = {name!r}"):
        clustering = made if isinstance(made, Clustering) else Clustering(made, clusters)
    if is_counted and clustering is not made:
        clustering = replace(clustering, clusters=max(1, 1 + int(clustering.labels.max(initial=-1))))
    if len(clustering.labels) != clients:
        raise InputError(f"clustering.method = {name!r}: gave {len(clustering.labels)} labels for {clients} clients")
    if not may_empty and not clustering.sizes.any():
        raise InputError(f"clustering.method = {name!r}: leaves out all clients")
    if not may_empty and (empty := np.flatnonzero(clustering.sizes == 0)).size:
        advice = "number them without gaps" if is_counted else "lower clustering.clusters"
        raise InputError(
            f"clustering.clusters = {clustering.clusters}: clustering.method = {name!r} leaves "
            f"cluster {empty[0]} without clients; {advice}"
        )
    return clustering
