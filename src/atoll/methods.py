"""The methods, each in a few lines: a schedule, a local rule, an identity and a combine rule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from atoll.clustering import Clustering, one_cluster
from atoll.clustering.problem import Pattern
from atoll.combine import COMBINES
from atoll.engine import Method
from atoll.errors import InputError
from atoll.identity import least_loss
from atoll.local import LocalRule, momentum
from atoll.network import Network
from atoll.population import Population
from atoll.schedules import Clock, Order, Phase, all_together, cycling, hierarchical_schedule
from atoll.vertical import Mode, exchanging, join_blocks, output_bytes

Option = Literal["models", "gradients"]


def fedcluster(
    population: Population,
    clustering: Clustering,
    rule: LocalRule,
    rounds: int,
    fraction: float = 0.1,
    order: Order = "reshuffled",
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedCluster: clusters take turns, so the server's model moves M times a round at the same cost.

    Chen et al. 2020, Algorithm 1. For rounds j, for cycles K in the order sigma_j: the cycle's cohort starts from
    the server's model W, trains, and ``W <- sum_k p_k w_k / sum_k p_k``.
    """
    return Method(cycling(population, clustering, rounds, fraction, order, clock, seed), rule)


def fedavg(
    population: Population,
    rule: LocalRule,
    rounds: int,
    fraction: float = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedAvg: FedCluster with one cluster. With ``rule.proximal`` it is FedProx.

    McMahan et al. 2017; Li et al. 2020.
    """
    clustering = one_cluster(len(population))
    return fedcluster(population, clustering, rule, rounds, fraction, "fixed", clock, seed)


def centralized(
    population: Population, rule: LocalRule, rounds: int, clock: Clock | None = None, seed: int = 0
) -> Method:
    """SGD on the pooled data: FedAvg with one client that holds everything and keeps its optimiser's state.

    `population` must be pooled (``population.pooled()``); a round is ``rule.steps`` steps.
    """
    if len(population) != 1:
        raise InputError(f"method.name = 'centralized': needs the pooled population, got {len(population)} clients")
    method = fedavg(population, replace(rule, carry=True), rounds, 1.0, clock, seed)
    events = tuple(replace(event, models_down=0, models_up=0) for event in method.schedule.events)
    return replace(method, schedule=replace(method.schedule, events=events))


def hierarchical(
    population: Population,
    clustering: Clustering,
    network: Network,
    rule: LocalRule,
    rounds: int,
    pattern: Pattern = "cenasy",
    intra_rounds: int = 5,
    phases: Sequence[Phase] | None = None,
    deadline_seconds: float = math.inf,
) -> Method:
    """FedUC's hierarchical aggregation: clusters average often, and merge with each other now and then.

    Algorithm 1 of FedUC. Clients take T'' = `rule.steps` local steps, then their aggregator j takes
    ``w~_j = sum_i phi_ij v_i`` (6); after T' = `intra_rounds` of these it merges, as the pattern says:

    - censyn (7): ``w = sum_j beta_j w~_j``, which all start from;
    - cenasy (8): whenever one finishes, ``w <- (1 - beta_j) w + beta_j w~_j``, which it alone starts from;
    - decsyn (10): each starts from ``sum over j' in S_j of sigma_jj' w~_j'``, S_j being its neighbours and itself;
    - decasy (11): whenever one finishes, it starts from that sum, of what its neighbours sent last.

    The seconds of the network decide who finishes when. A round is one local step index t: T = `rounds` must be a
    multiple of T'T'', and the rule's `lr_decay` is per local step, taken at the first of an event. For clients that
    move, `phases` replaces `clustering` and `network` by those in force from each round on. Clients that have not
    uploaded by the deadline are left out.
    """
    if phases is None:
        phases = (Phase(0, clustering, network),)
    schedule = hierarchical_schedule(population, phases, pattern, rounds, intra_rounds, rule.steps, deadline_seconds)
    return Method(schedule, rule)


def ifca(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: int = 4,
    option: Option = "models",
    fraction: float = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """IFCA: every round each client of the cohort takes the model with the least loss on its data, and trains it.

    Ghosh et al. 2020. Option `models`: a cluster's model becomes the mean of its clients' models. Option
    `gradients`, with one local step: ``chi_p <- chi_p - (eta / m) * sum of g_i``, m counting the whole cohort.
    """
    schedule = all_together(population, clusters, rounds, fraction, clock, seed)
    if option == "gradients":
        if rule.steps != 1:
            raise InputError(f"local.steps = {rule.steps}: must be 1 with method.option = 'gradients'")
        even = tuple(replace(event, weights=np.ones(len(event.cohort))) for event in schedule.events)
        schedule = replace(schedule, events=even)  # 1 / m each, as the paper writes it
    return Method(schedule, rule, least_loss, COMBINES[option], starts=clusters)


def cfl_mgd(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: int = 4,
    beta: float = 0.9,
    option: Option = "models",
    fraction: float = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """CFL-MGD: IFCA with the heavy ball ``u <- beta * u + g; chi <- chi - eta * u``, u kept by each cluster.

    The clusters' u_p are sent with the models and averaged like them, so clients keep no state. The rule's own
    optimiser is replaced; with beta = 0 it is IFCA with SGD.
    """
    if not 0 <= beta < 1:
        raise InputError(f"method.beta = {beta}: must be at least 0 and less than 1")
    heavy_ball = replace(rule, optimizer=partial(momentum, momentum=beta), carry=True)
    return ifca(population, heavy_ball, rounds, clusters, option, fraction, clock, seed)


def fedbcd(
    population: Population, rule: LocalRule, rounds: int, mode: Mode = "parallel", clock: Clock | None = None
) -> Method:
    """FedBCD: parties that hold different features of the same samples train a sum of their networks.

    Liu et al. 2022. A round exchanges the parties' outputs for one batch S; then each party k takes Q = `rule.steps`
    steps ``theta_k <- theta_k - eta * grad_k f(theta_k, the others' outputs; S)`` on its own block, side by side
    (`parallel`) or in turn, with the new outputs of those before it (`sequential`). Parties keep their optimiser's
    state. With Q = 1, parallel is SGD on the whole model.

    `population` is that of the parties (``vertical.share_samples``), the model a ``vertical.Parties``, the trainer a
    ``vertical.PartyTrainer``.
    """
    if not all(np.array_equal(population.samples(k), population.samples(0)) for k in range(len(population))):
        raise InputError("method.name = 'fedbcd': needs parties that hold the same samples, as share_samples gives")
    if rule.parts:
        raise InputError(
            "method.resample = true: does not go with method.name = 'fedbcd', whose parties have no data apart"
        )
    schedule = exchanging(len(population), rounds, mode, output_bytes(population, rule), clock)
    return Method(schedule, replace(rule, carry=True), combine=join_blocks)


METHODS: dict[str, Callable[..., Method]] = {
    "fedcluster": fedcluster,
    "fedavg": fedavg,
    "centralized": centralized,
    "hierarchical": hierarchical,
    "ifca": ifca,
    "cfl-mgd": cfl_mgd,
    "fedbcd": fedbcd,
}
