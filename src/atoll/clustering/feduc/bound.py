"""FedUC's convergence bound F(x) = kappa(x) * (F(w0) - F*) + delta(x), computed directly from Table IV.

All formulas have H = T' * T'' local steps between two inter-cluster aggregations; the paper, with T'' = 1, has T'.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from atoll.clustering.feduc.formulas import FORMULAS, make_terms
from atoll.clustering.feduc.problem import Problem, check
from atoll.network.completion import broadcast_down_seconds, check_labels, completion_of
from atoll.network.transfers import merged_seconds, paced_seconds, pattern_transfer_seconds
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError


@dataclass(frozen=True, eq=False)
class Bound:
    """The bound of one assignment and its parts; entries of aggregators without clients are 0.

    Attributes:
        kappa: convergence factor.
        delta: residual error.
        bound: ``kappa * initial_gap + delta``.
        beta: each aggregator's share of the assigned samples, [aggregators].
        gamma: Gamma_j, what one local step in cluster j adds to the error (Lemma 1), [aggregators].
        xi: squared distance between the cluster's gradient and the whole gradient, [aggregators].
        psi: j's share of the inter-cluster aggregations, [aggregators]; equal in the synchronous patterns; not 0
            without clients if it follows from `Problem.frequencies`.
        tau_max: largest staleness; 0 in the synchronous patterns.
        completion_seconds: one intra-cluster aggregation (eq. 50), [aggregators].
        event_seconds: T' of those and the transfer, [aggregators].
        steps: T; not always an integer if it follows from `Problem.seconds`.
        virtual_seconds: virtual time of T local steps.
    """

    kappa: float
    delta: float
    bound: float
    beta: Floats
    gamma: Floats
    xi: Floats
    psi: Floats
    tau_max: float
    completion_seconds: Floats
    event_seconds: Floats
    steps: float
    virtual_seconds: float


# Local searches evaluate one problem many times; a single entry does not keep large networks alive.
_check_once = lru_cache(maxsize=1)(check)
_transfer_seconds = lru_cache(maxsize=1)(pattern_transfer_seconds)


def evaluate(problem: Problem, labels: Ids) -> Bound:
    """Return the bound of an assignment, over the clients that it assigns (eq. 49, Table IV, Theorems 1 to 4).

    `labels` [clients] holds each client's aggregator, or -1 for one not assigned yet.

    The theorems hold for T'' = 1 and ``lr < mu / (2 * smoothness ** 2)``; otherwise the bound only ranks assignments.

    The clock gives each aggregator with clients the frequency ``f_j = 1 / event_seconds_j``. Synchronous patterns
    make one inter-cluster aggregation every ``max(event_seconds)``; asynchronous ones make ``sum(f)`` a second, so that
    ``psi_j = f_j / sum(f)`` and ``tau_max = 1 / min(psi) - 1``. `Problem.frequencies` replace all f_j, also
    those of aggregators without clients, in psi and tau_max; they do not change how much fits into a time. With
    `Problem.seconds`, R is the real number of aggregations that fit and ``T = R * H``; in DecSyn's sum over
    aggregations the last, unfinished one then counts ``(1 - rho0 ** (T - H * floor(R))) / (1 - rho0 ** H)`` times, so
    that the bound is continuous in R.
    """
    _check_once(problem)
    samples = samples_of(problem, labels)
    used = np.flatnonzero(samples)
    held = samples[used]
    if not len(used):
        raise InputError("clustering: labels give no client an aggregator: at least one client must have one")
    completion, events = clock_of(problem, labels, samples)
    xi, gamma = _xi_gamma(problem, labels, used, held)
    terms = make_terms(problem, used, held, gamma, events[used])
    kappa, delta = FORMULAS[problem.pattern](terms)
    given = problem.frequencies if problem.pattern.endswith("asy") else None
    entries = np.zeros((4, len(samples)))
    entries[:, used] = terms.beta, gamma, xi, terms.psi
    beta, gamma, xi, psi = entries
    return Bound(
        kappa=kappa,
        delta=delta,
        bound=kappa * problem.initial_gap + delta,
        beta=beta,
        gamma=gamma,
        xi=xi,
        psi=psi if given is None else given / given.sum(),
        tau_max=terms.tau_max,
        completion_seconds=completion,
        event_seconds=events,
        steps=terms.steps,
        virtual_seconds=terms.aggregations * terms.seconds,
    )


def samples_of(problem: Problem, labels: Ids) -> Floats:
    """Return the samples that each aggregator's clients hold, D_j, [aggregators]."""
    check_labels(problem.network, labels)
    assigned = labels >= 0
    return np.bincount(labels[assigned], problem.sizes[assigned], minlength=problem.network.aggregators).astype(float)


def clock_of(problem: Problem, labels: Ids, samples: Floats) -> tuple[Floats, Floats]:
    """Return the seconds of each cluster's average, and of its work between two merges; 0 without clients."""
    completion, down = completion_of(problem.network, labels), broadcast_down_seconds(problem.network, labels)
    events = problem.intra_rounds * (completion + down)
    if problem.network.sharing is None:
        events += _transfer_seconds(problem.network, problem.pattern)
    else:
        events = merged_seconds(problem.network, problem.pattern, events, samples > 0)
    events[samples == 0] = 0
    return completion, paced_seconds(problem.network, events, problem.pattern)


def mean_deviations(problem: Problem, labels: Ids, used: Ids, samples: Floats) -> tuple[Floats, Ids, Ids]:
    """Return each used cluster's mean of h_i, [used, k], clients by cluster, and where each cluster begins."""
    order = np.argsort(labels, kind="stable")
    begin = np.searchsorted(labels[order], used)
    order, begin = order[begin[0] :], begin - begin[0]
    sizes = problem.sizes[order]
    return np.add.reduceat(sizes[:, None] * problem.deviations[order], begin) / samples[:, None], order, begin


def _xi_gamma(problem: Problem, labels: Ids, used: Ids, samples: Floats) -> tuple[Floats, Floats]:
    """Return xi_j and Gamma_j of the aggregators with clients."""
    means, order, begin = mean_deviations(problem, labels, used, samples)
    sizes = problem.sizes[order]
    xi = np.einsum("jk,jk->j", means, means)  # || mean of h_i over the cluster ||^2
    excess = np.full(len(used), problem.cluster_optimum)  # F_j* less the clients' mean of f_i*
    if problem.optimal_losses is not None:
        excess -= np.add.reduceat(sizes * problem.optimal_losses[order], begin) / samples
    # Lemma 1: Gamma_j = eta / 2 * xi_j + 2 L^2 eta^2 * (F_j* - mean of f_i*) + L eta^2 * (mean of g_i*).
    scale = problem.smoothness * problem.lr**2
    gamma = problem.lr / 2 * xi + 2 * problem.smoothness * scale * excess
    if problem.noise is not None:
        gamma += scale * np.add.reduceat(sizes * problem.noise[order], begin) / samples
    return xi, gamma
