"""What FedUC's clustering is given: the pattern, the network, and the constants of the convergence bound."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from atoll.network import Network

Floats = npt.NDArray[np.float64]
Pattern = Literal["censyn", "cenasy", "decsyn", "decasy"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)


@dataclass(frozen=True, eq=False)
class Problem:
    """Choose every client's aggregator so that the bound F(x) = kappa(x) * (F(w0) - F*) + delta(x) is least.

    Attributes:
        pattern: how aggregators merge their models.
        network: how long things take.
        sizes: samples of each client, d_i, [clients].
        deviations: rows h_i with ``xi_j = || sum over the clients of j of phi_ij * h_i ||^2``, phi_ij = d_i / D_j,
            [clients, k]: gradients less the mean gradient of all clients, or anything with the same inner products.
        limits: L_j^max, the longest completion allowed in each cluster, seconds, [aggregators]; inf for none.
        steps: T, local steps of the run.
        intra_rounds: T', intra-cluster aggregations between two inter-cluster ones.
        local_steps: T'', local steps between two intra-cluster aggregations.
        lr: eta.
        mu: strong convexity; ``mu * lr`` must be less than 1.
        smoothness: L.
        initial_gap: F(w0) - F*.
        optimal_losses: f_i*, [clients]; None for zeros.
        noise: g_i*, the mean squared norm of a sample's gradient at the client's optimum, [clients]; None for zeros.
        cluster_optimum: F_j*, the same for every cluster.
        frequencies: psi_j, each aggregator's share of the inter-cluster aggregations, [aggregators]; None: from the
            clock.
        tau_max: largest staleness; None: from the clock.
        seconds: with a number, T is what the clustering reaches within so much virtual time, and `steps` is not used.
    """

    pattern: Pattern
    network: Network
    sizes: Floats
    deviations: Floats
    limits: Floats
    steps: int
    intra_rounds: int = 5
    local_steps: int = 1
    lr: float = 0.01
    mu: float = 1.0
    smoothness: float = 10.0
    initial_gap: float = 2.3
    optimal_losses: Floats | None = None
    noise: Floats | None = None
    cluster_optimum: float = 0.0
    frequencies: Floats | None = None
    tau_max: float | None = None
    seconds: float | None = None
