"""The papers' convergence bounds, as functions of a problem's constants."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.support.errors import InputError
from atoll.support.limits import NotNegative, Positive, PositiveFloat
from atoll.support.requiring import checked


@dataclass(frozen=True)
class FedClusterBound:
    """FedCluster's Theorem 1.

    Attributes:
        lr: the learning rate that it assumes, ``(T M E) ** -0.5``.
        constant: C of eq. (4).
        bound: ``2 C / sqrt(T M E)``, on the mean over rounds of E||grad f||^2 at round starts.
        unmet: the theorem's conditions that do not hold, in words; the bound is proven only if there are none.
    """

    lr: float
    constant: float
    bound: float
    unmet: tuple[str, ...]


@checked(
    "{}",
    rounds=Positive,
    steps=Positive,
    smoothness=PositiveFloat,
    gradient_bound=PositiveFloat,
    gap=NotNegative,
    h_cluster=NotNegative,
)
def fedcluster_bound(
    population: Population,
    clustering: Clustering,
    *,
    rounds: int,
    steps: int,
    smoothness: float,
    gradient_bound: float,
    gap: float,
    h_cluster: float,
    variances: Sequence[float],
) -> FedClusterBound:
    """Return the bound of FedCluster with local SGD, batch size 1 and full participation (Chen et al. 2020).

    Args:
        population: gives p_k.
        clustering: gives M and q_K.
        rounds: T.
        steps: E.
        smoothness: L.
        gradient_bound: G; the mean squared norm of sample gradients at the run's models is at most G^2.
        gap: f(W_0) - inf f.
        h_cluster: H_cluster, the supremum, or the largest value observed.
        variances: s_k^2 for each client; for batches of b samples pass s_k^2 / b.
    """
    if len(variances) != len(population):
        raise InputError(f"variances has {len(variances)} values for {len(population)} clients")
    shares = population.shares
    q = np.bincount(clustering.labels, weights=shares, minlength=clustering.clusters)
    # Sampling noise: sum over clusters K of q_K * (sum over k in K of (p_k / q_K)^2 s_k^2).
    noise = float(np.sum(shares**2 * np.asarray(variances) / q[clustering.labels]))
    # (4): the initial gap, and the effect of gradients' spread over clusters and samples.
    constant = 2 * gap + 4 * smoothness * (h_cluster + noise)
    cycles, total = clustering.clusters * steps, rounds * clustering.clusters * steps
    unmet = []
    if cycles * 8 * smoothness * gradient_bound**2 > constant:
        unmet.append(f"M E = {cycles} exceeds C / (8 L G^2) = {constant / (8 * smoothness * gradient_bound**2):.3g}")
    if rounds < (least := smoothness**2 * max(1.0, 16 / cycles)):
        unmet.append(f"T = {rounds} is below L^2 max(1, 16 / (E M)) = {least:.3g}")
    return FedClusterBound(total**-0.5, constant, 2 * constant / total**0.5, tuple(unmet))


PROOF_CONSTANTS = (1 / 8, 384.0, 128**0.5, 1 / 2, 1 / 4, 384.0, 128**0.5)
"""CFL-MGD's c, c_1, ..., c_6, which the theorem leaves open, from its proof.

c is Hoeffding's in (A5); c_1 and c_5 are three times the 128 of (29) and (30) together, by (A14), c_2 and c_6 its root;
c_3 and c_4 are in (A27).
"""


@dataclass(frozen=True, kw_only=True)
class CflMgdTerms:
    """The quantities of CFL-MGD's Theorem 1: option I, full participation, resampling, strongly convex losses.

    Attributes:
        rounds: T.
        clients: m.
        samples: n', a client's fresh samples for each round's gradient, and as many for its cluster assignment.
        clusters: P.
        least_share: l, the smallest planted cluster's share of the clients.
        parameters: d, of a model.
        smoothness: L of the clusters' losses.
        convexity: mu of the clusters' losses.
        distance: Delta, the least distance between two clusters' optima.
        start_error: largest distance of a cluster's first model from its optimum.
        largest_optimum: largest norm of an optimum.
        loss_deviation: sigma, the root mean square deviation of a sample's loss at the run's models.
        gradient_deviation: v, the same of a sample's gradient.
        beta: the clusters' momentum.
        lambdas: lambda_0, ..., lambda_4: smaller ones make rho_0 larger and failure less likely.
        constants: c, c_1, ..., c_6. If beta is 0, c_4 may be 0: it bounds a term with the factor beta.

    Raises:
        InputError: if the number of lambdas or constants is wrong, or a value is out of range.
    """

    rounds: int
    clients: int
    samples: int
    clusters: int
    least_share: float
    parameters: int
    smoothness: float
    convexity: float
    distance: float
    start_error: float
    largest_optimum: float
    loss_deviation: float
    gradient_deviation: float
    beta: float
    lambdas: Sequence[float]
    constants: Sequence[float] = PROOF_CONSTANTS

    def __post_init__(self) -> None:
        if len(self.lambdas) != 5 or not all(0 < each < 1 for each in self.lambdas):
            raise InputError(f"lambdas = {list(self.lambdas)}: must be five numbers between 0 and 1")
        if len(self.constants) != 7 or min(self.constants) < 0:
            raise InputError(f"constants = {list(self.constants)}: must be seven numbers of at least 0")
        if not 0 < self.convexity <= self.smoothness:
            raise InputError(
                f"convexity = {self.convexity:g}: must be above 0 and at most smoothness = {self.smoothness:g}"
            )
        if not 0 <= self.beta < 1:
            raise InputError(f"beta = {self.beta:g}: must be at least 0 and less than 1")
        if not 0 < self.least_share <= 1 / self.clusters:
            raise InputError(f"least_share = {self.least_share:g}: must be above 0 and at most 1 / {self.clusters}")

    @property
    def rate(self) -> float:
        """``l mu / (8 L)``, by which a round shrinks the error."""
        return self.least_share * self.convexity / (8 * self.smoothness)

    @property
    def rho_0(self) -> float:
        """(A36) at the last round: the most that a round adds to the error."""
        l0, l1, l2, l3, l4 = self.lambdas
        _, c1, c2, c3, c4, c5, c6 = self.constants
        share, momentum = self.least_share, self.beta / (1 - self.beta)
        noise = self.gradient_deviation / (self.smoothness * math.sqrt(self.clients * self.samples))
        strayed = self._least_samples / (self.clusters * self.samples)  # share of clients in a wrong cluster
        cross = noise * math.sqrt(self.clusters * strayed / l2)
        return (
            2 * noise / (l0 * math.sqrt(share))
            + c1 * strayed / l2
            + c2 * cross / l1
            + c3 * momentum * noise * math.sqrt(share * self.rounds) / l3
            + c4 * share
            + c5 * self.beta * strayed / l2
            + c6 * momentum * cross * math.sqrt(self.rounds) / l4
        )

    @property
    def failure(self) -> float:
        """``P lambda_5``: an upper bound on the probability that Lemma 2 fails for some cluster in one round."""
        l0, l1, l2, l3, l4 = self.lambdas
        spread = 4 * math.exp(-self.constants[0] * self.least_share * self.clients)
        return self.clusters * (l0 + self.clusters * l1 + 2 * l2 + l3 + self.clusters * l4 + spread)

    @property
    def unmet(self) -> tuple[str, ...]:
        """The conditions that do not hold, in words; "up to a constant" is taken to mean up to 1."""
        condition, distance = self.convexity / self.smoothness, self.distance
        basin, room = condition**0.5 * distance / 4, self.least_share / 32 * condition**1.5 * distance
        held, failure = self.least_share * self.clients * self.samples, self.rounds * self.failure
        conditions = [
            (self.start_error <= basin, f"start_error = {self.start_error:.3g} exceeds sqrt(mu / L) Delta / 4", basin),
            (self.rho_0 <= room, f"rho_0 = {self.rho_0:.3g} exceeds (l / 32) (mu / L)^(3 / 2) Delta", room),
            (self.largest_optimum <= 1, f"largest_optimum = {self.largest_optimum:.3g} exceeds its limit", 1),
            (
                self.samples >= self._least_samples,
                f"n' = {self.samples} is below P sigma^2 / (mu^2 Delta^4)",
                self._least_samples,
            ),
            (held >= self.parameters, f"l m n' = {held:.3g} is below d", self.parameters),
            (failure < 1, f"T P lambda_5 = {failure:.3g} is not below its limit", 1),
        ]
        return tuple(f"{told} = {limit:.3g}" for holds, told, limit in conditions if not holds)

    @property
    def _least_samples(self) -> float:
        return self.clusters * self.loss_deviation**2 / (self.convexity**2 * self.distance**4)


@dataclass(frozen=True)
class CflMgdBound:
    """CFL-MGD's Lemma 2, for one round, and Theorem 1, which iterates it.

    Attributes:
        lr: the learning rate that it assumes, ``1 / L``.
        contraction: Lemma 2's factor ``1 - l mu / (8 L)``: a round reduces an error e to ``contraction * e + rho_0``.
        rho_0: the most that a round adds.
        bound: on every cluster's error after all rounds, (A39).
        rho: Theorem 1's ``16 L rho_0 / (mu l)``, the bound after `rounds_needed`.
        rounds_needed: ``8 L / (l mu) * log(Delta / (2 rho))``, at least 0.
        failure: upper bound on the probability that Lemma 2 fails in one round; for any of T rounds, T times that.
        unmet: the theorem's conditions that do not hold, in words; the bound is proven only if there are none.
    """

    lr: float
    contraction: float
    rho_0: float
    bound: float
    rho: float
    rounds_needed: float
    failure: float
    unmet: tuple[str, ...]


def cfl_mgd_bound(terms: CflMgdTerms) -> CflMgdBound:
    """Return the bound on the clusters' distances from their optima (Zhao et al. 2023)."""
    rate, rho_0 = terms.rate, terms.rho_0
    rho = 2 * rho_0 / rate
    return CflMgdBound(
        lr=1 / terms.smoothness,
        contraction=1 - rate,
        rho_0=rho_0,
        bound=(1 - rate) ** terms.rounds * terms.start_error + rho_0 / rate,
        rho=rho,
        rounds_needed=max(0.0, math.log(terms.distance / (2 * rho)) / rate) if rho else math.inf,
        failure=terms.failure,
        unmet=terms.unmet,
    )
