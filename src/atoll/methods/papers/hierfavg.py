"""HierFAVG: edge servers average often, the cloud less often (Liu et al. 2020)."""

import math
from collections.abc import Sequence
from typing import Literal

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.hierarchical import Phase, hierarchical
from atoll.methods.parts.checking import checked
from atoll.network.network import Network
from atoll.schedules.clock import Pace
from atoll.support.limits import Positive


@checked
def hierfavg(
    population: Population,
    clustering: Clustering,
    network: Network,
    rule: LocalRule,
    rounds: int,
    intra_rounds: Positive = 5,
    pattern: Literal["censyn"] = "censyn",
    phases: Sequence[Phase] | None = None,
    deadline_seconds: float = math.inf,
    pace: Pace | None = None,
) -> Method:
    """HierFAVG: a client-edge-cloud hierarchy, equal to `hierarchical` with the pattern censyn.

    Liu et al. 2020, "Client-Edge-Cloud Hierarchical Federated Learning", Algorithm 1: kappa_1 = `rule.steps` local
    steps, then each edge averages its clients; after kappa_2 = `intra_rounds` of these the cloud averages the edges,
    weighted by their samples. T = `rounds`, in local steps, must be a multiple of kappa_1 kappa_2.

    Args:
        clustering: each client's edge server.
        network: training and transfer times.
        rounds: number of local steps, T.
        intra_rounds: edge averages before each cloud average, kappa_2.
        pattern: always censyn; used by clusterings that depend on a pattern.
    """
    return hierarchical(
        population, clustering, network, rule, rounds, pattern, intra_rounds, phases, deadline_seconds, pace
    )
