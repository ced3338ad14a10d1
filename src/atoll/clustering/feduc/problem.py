"""The input of FedUC's clustering: the pattern, the network, and the constants of the convergence bound."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from atoll.network.network import Network
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.limits import Count, Positive, PositiveFloat

Pattern = Literal["censyn", "cenasy", "decsyn", "decasy"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
_LEAST, _MOST = float(np.finfo(np.float64).tiny), float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class PatternSettings:
    """The settings of ``[method]`` that `Problem` uses.

    Attributes:
        pattern: how clusters merge: central or not, synchronous or not.
        intra_rounds: averages in a cluster before each merge, T'.
    """

    pattern: Pattern = "cenasy"
    intra_rounds: Positive = 5


@dataclass(frozen=True)
class BoundSettings:
    """The settings of ``[clustering]`` that `Problem` uses.

    Attributes:
        time_limit: longest completion in a cluster, s: one number, a list with one per aggregator, or a CSV or .npy
            file with such a list; unset: no limit.
        xi: xi_j from class-mean gradients, from clients' gradients, or from class shares.
        warmup_rounds: with xi = gradients, rounds of FedAvg during which xi is measured too.
        mu: strong convexity, or estimate.
        smoothness: L, or estimate.
        initial_gap: F(w0) - F*; unset: the loss at the start.
        frequencies: asynchronous patterns: psi_j of all aggregators up to a factor; transfer: as if only transfers took
            time; unset: from the virtual clock.
    """

    time_limit: PositiveFloat | list[PositiveFloat] | str | None = None
    xi: Literal["labels", "gradients", "shares"] = "labels"
    warmup_rounds: Count = 0
    mu: PositiveFloat | Literal["estimate"] = 1.0
    smoothness: PositiveFloat | Literal["estimate"] = 10.0
    initial_gap: PositiveFloat | None = None
    frequencies: list[PositiveFloat] | Literal["transfer"] | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """Choose each client's aggregator so as to minimise the bound F(x) = kappa(x) * (F(w0) - F*) + delta(x).

    Attributes:
        pattern: how aggregators merge their models.
        network: gives all times.
        sizes: samples of each client, d_i, [clients].
        deviations: rows h_i with ``xi_j = || sum over the clients of j of phi_ij * h_i ||^2``, phi_ij = d_i / D_j,
            [clients, k]: gradients less the mean gradient of all clients, or anything with the same inner products.
        limits: L_j^max, the longest completion allowed in each cluster, seconds, [aggregators]; inf for no limit.
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
        frequencies: psi_j up to a common factor, of all aggregators, with or without clients, [aggregators]; None: from
            the clock, of those with clients.
        tau_max: largest staleness; None: from the frequencies, ``1 / min(psi) - 1``.
        seconds: if given, T is what the clustering reaches within this virtual time, and `steps` is ignored.
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

    @property
    def period(self) -> int:
        """H = T' * T'', local steps between two inter-cluster aggregations."""
        return self.intra_rounds * self.local_steps

    @property
    def log_rho(self) -> float:
        """Logarithm of ``rho0 = 1 - mu * eta``, accurate also if rho0 is close to 1."""
        return math.log1p(-self.mu * self.lr)


def check(problem: Problem) -> None:
    """Refuse a problem without a bound: a number is out of range, or an array has the wrong shape."""
    if problem.pattern not in PATTERNS:
        raise InputError(f"method.pattern = {problem.pattern!r}: must be one of {', '.join(PATTERNS)}")
    _check_arrays(problem)
    _check_clock(problem)
    whole = problem.seconds is not None or problem.steps % max(problem.period, 1) == 0
    slowest = 1 / problem.lr if problem.lr > 0 else math.inf
    least = 0.0 if problem.optimal_losses is None else float(np.average(problem.optimal_losses, weights=problem.sizes))
    optimum, tau_max, seconds = problem.cluster_optimum, problem.tau_max, problem.seconds
    fits = least - 1e-9 * abs(least) <= optimum < math.inf  # the mean is rounded
    for setting, value, holds, allowed in (
        ("rounds", problem.steps, problem.steps >= 1, "at least 1"),
        ("method.intra_rounds", problem.intra_rounds, problem.intra_rounds >= 1, "at least 1"),
        ("local.steps", problem.local_steps, problem.local_steps >= 1, "at least 1"),
        ("rounds", problem.steps, whole, f"a multiple of method.intra_rounds x local.steps = {problem.period}"),
        ("local.lr", problem.lr, 0 < problem.lr < math.inf, "positive"),
        ("clustering.mu", problem.mu, 0 < problem.mu < slowest, f"positive and less than 1 / local.lr = {slowest:g}"),
        ("clustering.smoothness", problem.smoothness, 0 < problem.smoothness < math.inf, "positive"),
        ("clustering.initial_gap", problem.initial_gap, 0 <= problem.initial_gap < math.inf, "at least 0"),
        ("clustering.cluster_optimum", optimum, fits, f"at least the mean optimal loss {least}"),
        ("clustering.tau_max", tau_max, tau_max is None or 0 <= tau_max < math.inf, "at least 0"),
        ("clustering.seconds", seconds, seconds is None or 0 < seconds < math.inf, "positive"),
    ):
        if not holds:
            raise InputError(f"{setting} = {value}: must be {allowed}")


def _check_clock(problem: Problem) -> None:
    """Refuse frequencies of the bound that differ from those that the network's clock keeps."""
    kept, counted = problem.network.frequencies, problem.frequencies
    if kept is None or problem.pattern.endswith("syn"):
        return
    if problem.seconds is not None:
        raise InputError(
            "network.frequencies: cannot be used with clustering.objective = 'time', which needs clusters' own speeds"
        )
    if counted is None or not np.allclose(counted / counted.sum(), kept / kept.sum(), rtol=1e-9, atol=0):
        raise InputError(
            f"clustering.frequencies = {None if counted is None else counted.tolist()}: must agree with "
            f"network.frequencies = {kept.tolist()}, which the clock keeps; remove the former"
        )


def _check_arrays(problem: Problem) -> None:
    """Refuse a wrong shape, or a number that is not allowed; names the first client or aggregator with one."""
    clients, aggregators = (problem.network.clients,), (problem.network.aggregators,)
    table = (*clients, *(problem.deviations.shape[1:2] or (1,)))
    limits, frequencies = np.minimum(problem.limits, _MOST), problem.frequencies  # inf, no limit, is allowed
    for name, values, shape, least, allowed in (
        ("clustering: samples of client", problem.sizes, clients, _LEAST, "positive and finite"),
        ("clustering: deviations of client", problem.deviations, table, -np.inf, "finite"),
        ("clustering.time_limit: time limit of aggregator", limits, aggregators, _LEAST, "positive"),
        ("clustering: optimal loss of client", problem.optimal_losses, clients, -np.inf, "finite"),
        ("clustering: noise of client", problem.noise, clients, 0.0, "at least 0 and finite"),
        ("clustering.frequencies: frequency of aggregator", frequencies, aggregators, _LEAST, "positive and finite"),
    ):
        if values is None:
            continue
        if values.shape != shape:
            raise InputError(f"{name}: shape {list(values.shape)}: must be {list(shape)}")
        good = np.isfinite(values) & (values >= least)
        bad = np.flatnonzero(~good.reshape(len(values), -1).all(axis=1))
        if len(bad):
            raise InputError(f"{name} {bad[0]} = {values[bad[0]]}: must be {allowed}")
