"""FedUC's hierarchical aggregation in four patterns, with merges ordered by the virtual clock.

CenSyn, CenAsy, DecSyn and DecAsy differ only in who takes part in an event (all clusters, or the next to finish)
and how published models are merged (with a server, or between neighbours).
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.clustering.feduc.problem import PATTERNS, Pattern
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import refuse_epochs
from atoll.network.completion import event_seconds, fastest_seconds, late_clients
from atoll.network.network import Network
from atoll.network.topology import graph_of, is_cut, require_connected
from atoll.schedules.clock import Pace, missed
from atoll.schedules.events import FROM_SERVER, Merge, Mix, Schedule
from atoll.schedules.packed import pack
from atoll.schedules.timeline import Arrivals, Finished, PhaseWork, Work
from atoll.support.arrays import Floats, Ids, Mask
from atoll.support.errors import InputError
from atoll.support.limits import Positive

CENTRAL: tuple[Pattern, ...] = ("censyn", "cenasy")
SYNCHRONOUS: tuple[Pattern, ...] = ("censyn", "decsyn")

Neighbours = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Phase:
    """The clustering and network from a round on, for clients that move.

    Attributes:
        round: the local step index t from which it applies.
        clustering: each client's aggregator; cluster j is aggregator j.
        network: training and transfer times.
    """

    round: int
    clustering: Clustering
    network: Network


@checked
def hierarchical(
    population: Population,
    clustering: Clustering,
    network: Network,
    rule: LocalRule,
    rounds: int,
    pattern: Pattern = "cenasy",
    intra_rounds: Positive = 5,
    phases: Sequence[Phase] | None = None,
    deadline_seconds: float = math.inf,
    pace: Pace | None = None,
) -> Method:
    """FedUC's hierarchical aggregation: clusters average often and merge with each other less often.

    Algorithm 1 of FedUC. Clients take T'' = `rule.steps` local steps, then their aggregator j computes
    ``w~_j = sum_i phi_ij v_i`` (6); after T' = `intra_rounds` of these it merges, according to the pattern:

    - censyn (7): all continue from ``w = sum_j beta_j w~_j``;
    - cenasy (8): a cluster that finishes sets ``w <- (1 - beta_j) w + beta_j w~_j`` and alone continues from it;
    - decsyn (10): each continues from ``sum over j' in S_j of sigma_jj' w~_j'``, S_j being its neighbours and itself;
    - decasy (11): a cluster that finishes continues from that sum of its neighbours' latest models.

    The network's times decide who finishes when: synchronous events last as long as the slowest cluster. A round is
    one local step index t: T = `rounds` must be a multiple of T'T'', and the rule's `lr_decay` is per local step,
    evaluated at the first step of an event. Clients that have not uploaded by the deadline are left out of averages,
    but not of their cluster's weight. Aggregators without clients never train and have weight 0; in 'decsyn'
    they still receive models, which count.

    For clients that move, `phases` gives the `clustering` and `network` from each round on. Work in flight finishes
    with the clients that began it. A cluster that lost all its clients stops; one that gets clients again begins at the
    time of the event before the change, from its last start model.

    Args:
        clustering: each client's aggregator; aggregators may have no clients.
        network: training and transfer times.
        rounds: number of local step indices, T.
        pattern: how clusters merge: centralised or decentralised, synchronous or asynchronous.
        intra_rounds: intra-cluster averages before each merge, T'.
        pace: how clients' speeds change; a cluster's work keeps those at its start.
    """
    refuse_epochs(rule, "hierarchical aggregation, whose rounds are local steps that all clients take")
    if phases is None:
        phases = (Phase(0, clustering, network),)
    told = (population, phases, pattern, rounds, intra_rounds, rule.steps, deadline_seconds, pace)
    schedule, arrivals = hierarchical_schedule(*told)
    return Method(schedule, rule, arrivals=None if pattern in SYNCHRONOUS else arrivals)


def hierarchical_schedule(
    population: Population,
    phases: Sequence[Phase],
    pattern: Pattern,
    rounds: int,
    intra_rounds: int = 5,
    local_steps: int = 1,
    deadline_seconds: float = math.inf,
    pace: Pace | None = None,
) -> tuple[Schedule, Arrivals]:
    """Return the schedule of `hierarchical` alone, for clients that take `local_steps` (T'') steps.

    Also returns the works and merges that apply at each event.
    """
    _check(population, phases, pattern, rounds, intra_rounds, local_steps)
    rounds_per_event = intra_rounds * local_steps
    plans = [_plan(population, phase, pattern, intra_rounds, deadline_seconds, pace) for phase in phases]
    if not any(len(work.cohort) for plan in plans for work in plan.works.values()):
        least = min(fastest_seconds(phase.network, phase.clustering.labels) for phase in phases)
        raise InputError(missed(deadline_seconds, least))
    begins = [phase.round for phase in phases]
    index = np.arange(rounds // rounds_per_event)
    in_force = np.searchsorted(begins, index * rounds_per_event, side="right") - 1
    arrivals = Arrivals([plans[p] for p in in_force], rounds_per_event, intra_rounds)
    clusters = phases[0].network.aggregators
    downloaded = np.full(clusters, -1)
    finished = _synchronous(arrivals) if pattern in SYNCHRONOUS else _asynchronous(arrivals, clusters)
    events = (arrivals.event(index, done, downloaded) for index, done in enumerate(finished))
    return Schedule(pack(events), clusters, rounds, pattern in CENTRAL), arrivals


def cut_by_empty(network: Network, clustering: Clustering) -> bool:
    """Return whether aggregators without clients separate the others into parts that never exchange models.

    A decentralised pattern then trains several independent models, though the graph is connected.
    """
    return is_cut(network.neighbours, np.flatnonzero(clustering.sizes).tolist())


def _censyn(samples: Sequence[float], neighbours: Neighbours, active: tuple[int, ...]) -> Merge:
    """(7): ``w = sum_j beta_j w~_j``, sent to every aggregator."""
    return _weighted(samples, active), tuple((j, FROM_SERVER) for j in range(len(samples)))


def _cenasy(samples: Sequence[float], neighbours: Neighbours, active: tuple[int, ...]) -> Merge:
    """(8): ``w <- (1 - theta) w + theta w~_j`` with theta = beta_j, sent to j alone."""
    (j,) = active
    theta = samples[j] / sum(samples)
    return Mix(1 - theta, ((j, theta),) if theta else ()), ((j, FROM_SERVER),)


def _decsyn(samples: Sequence[float], neighbours: Neighbours, active: tuple[int, ...]) -> Merge:
    """(10): ``w_j = sum over j' in S_j of sigma_jj' w~_j'``, S_j being j and its neighbours."""
    mixes = ((j, _weighted(samples, (j, *neighbours[j]))) for j in range(len(samples)))
    return None, tuple((j, mix) for j, mix in mixes if mix)


def _decasy(samples: Sequence[float], neighbours: Neighbours, active: tuple[int, ...]) -> Merge:
    """(11): the same for the cluster that finished, from its neighbours' latest models."""
    (j,) = active
    mix = _weighted(samples, (j, *neighbours[j]))
    return None, ((j, mix),) if mix else ()


_MERGES: dict[Pattern, Callable[[Sequence[float], Neighbours, tuple[int, ...]], Merge]] = {
    "censyn": _censyn,
    "cenasy": _cenasy,
    "decsyn": _decsyn,
    "decasy": _decasy,
}


def _weighted(samples: Sequence[float], clusters: Iterable[int]) -> Mix | None:
    """Weight published models by their clusters' samples, D_j; None if all these clusters are empty."""
    weighing = [j for j in sorted(clusters) if samples[j]]
    total = sum(samples[j] for j in weighing)
    return Mix(published=tuple((j, samples[j] / total) for j in weighing)) if weighing else None


def _plan(
    population: Population, phase: Phase, pattern: Pattern, intra_rounds: int, deadline: float, pace: Pace | None
) -> PhaseWork:
    clustering, network = phase.clustering, phase.network
    if pace is not None and network.frequencies is not None:
        raise InputError("network.frequencies: cannot be used with changing speeds from faults.availability_file")
    made = _Works(population, clustering, pattern, intra_rounds, deadline)
    seconds, late = made.times(network, np.arange(len(population)))
    _require_time(seconds, clustering)
    everyone = tuple(range(network.aggregators))
    active = tuple(np.flatnonzero(clustering.sizes).tolist())
    groups = [active] if pattern in SYNCHRONOUS else [(j,) for j in everyone]
    samples = [float(population.sizes[clustering.members(j)].sum()) for j in everyone]
    merges = [_MERGES[pattern](samples, network.neighbours, group) for group in groups]
    works = {i: made.work(network, group, seconds, late) for i, group in enumerate(groups) if samples[group[0]]}
    return PhaseWork(works, merges) if pace is None else PhaseWork(works, merges, partial(made.begun, network, pace))


@dataclass(frozen=True, eq=False)
class _Works:
    """Makes the works of groups of clusters."""

    population: Population
    clustering: Clustering
    pattern: Pattern
    intra_rounds: int
    deadline: float

    def times(self, network: Network, clients: Ids) -> tuple[Floats, Mask]:
        """Return the duration of each cluster's work, [aggregators], and who is late, [all clients]."""
        labels, late = self.clustering.labels[clients], np.zeros(len(self.population), bool)
        if self.deadline < math.inf:
            late[clients] = late_clients(network, labels, self.deadline)
        return event_seconds(network, labels, self.pattern, self.intra_rounds, self.deadline), late

    def work(self, network: Network, group: tuple[int, ...], seconds: Floats, late: Mask) -> Work:
        members = self._members(group)
        cohort = members[~late[members]]
        return Work(
            active=group,
            cohort=cohort,
            clusters=self.clustering.labels[cohort],
            weights=self.population.sizes[cohort].astype(float),
            seconds=float(seconds[list(group)].max()),
            models_sent=sum(1 if self.pattern in CENTRAL else len(network.neighbours[j]) for j in group),
            late=len(members) - len(cohort),
        )

    def begun(self, network: Network, pace: Pace, planned: Work, now: float) -> Work:
        """Return the work if it begins now, at its clients' current speeds."""
        members = self._members(planned.active)
        times = self.times(network.part(members, *pace.times(members, now)), members)
        return self.work(network, planned.active, *times)

    def _members(self, group: tuple[int, ...]) -> Ids:
        return np.concatenate([self.clustering.members(j) for j in group])


def _require_time(seconds: Floats, clustering: Clustering) -> None:
    """Reject clusters with clients whose work takes no time, or forever."""
    occupied = np.flatnonzero(clustering.sizes)
    if (timeless := occupied[~((seconds[occupied] > 0) & np.isfinite(seconds[occupied]))]).size:
        j = timeless[0]
        raise InputError(f"network: the work of cluster {j} takes {seconds[j]} s; must be more than 0 and finite")


def _synchronous(arrivals: Arrivals) -> Iterator[Finished]:
    """All clusters work and wait for the slowest."""
    now = 0.0
    for index, plan in enumerate(arrivals.in_force):
        work = plan.begun(plan.works[0], now)
        began, now = now, now + work.seconds
        yield arrivals.end(index, 0, work, began, now)


def _asynchronous(arrivals: Arrivals, clusters: int) -> Iterator[Finished]:
    """The next cluster to finish merges and continues; one without clients starts once it gets some."""
    now = 0.0
    idle = set(range(clusters))
    in_flight: list[tuple[float, int, float, Work]] = []
    for index in range(len(arrivals.in_force)):
        for j, planned in arrivals.beginning(index, idle):
            work = arrivals.in_force[index].begun(planned, now)
            heapq.heappush(in_flight, (now + work.seconds, j, now, work))
            idle.remove(j)
        now, j, began, work = heapq.heappop(in_flight)  # the earliest; on ties the lowest cluster
        idle.add(j)
        yield arrivals.end(index, j, work, began, now)


def _check(
    population: Population, phases: Sequence[Phase], pattern: Pattern, rounds: int, intra_rounds: int, local_steps: int
) -> None:
    if pattern not in PATTERNS:
        raise InputError(f"method.pattern = {pattern!r}: must be one of {', '.join(PATTERNS)}")
    for name, value in (("rounds", rounds), ("method.intra_rounds", intra_rounds), ("local.steps", local_steps)):
        if value < 1:
            raise InputError(f"{name} = {value}: must be at least 1")
    if rounds % (intra_rounds * local_steps):
        raise InputError(
            f"rounds = {rounds}: must be a multiple of "
            f"method.intra_rounds x local.steps = {intra_rounds} x {local_steps}"
        )
    begins = [phase.round for phase in phases]
    if not begins or begins[0] != 0 or begins != sorted(set(begins)):
        raise InputError(f"phases: begin at rounds {begins}; must begin at 0 and ascend")
    for phase in phases:
        _check_phase(population, phase, phases[0].network.aggregators, central=pattern in CENTRAL)


def _check_phase(population: Population, phase: Phase, aggregators: int, central: bool) -> None:
    clustering, network = phase.clustering, phase.network
    if not len(clustering.labels) == network.clients == len(population):
        raise InputError(
            f"network: has {network.clients} clients and the clustering {len(clustering.labels)}, "
            f"but data.clients = {len(population)}"
        )
    if not clustering.clusters == network.aggregators == aggregators:
        raise InputError(
            f"clustering.clusters = {clustering.clusters}: must be {aggregators}, the number of aggregators, always"
        )
    if not clustering.sizes.any():
        raise InputError("clustering: no client is in any cluster")
    if not central:
        require_connected(graph_of(network.neighbours))
