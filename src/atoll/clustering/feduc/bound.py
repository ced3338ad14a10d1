"""FedUC's convergence bound F(x) = kappa(x) * (F(w0) - F*) + delta(x), straight from its formulas (Table IV).

Every formula has H = T' * T'' local steps between two inter-cluster aggregations where the paper, with T'' = 1, has T'.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from atoll.clustering.feduc.problem import Pattern, Problem, check
from atoll.network.completion import broadcast_down_seconds, check_labels, completion_of
from atoll.network.transfers import merged_seconds, paced_seconds, pattern_transfer_seconds
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError


@dataclass(frozen=True, eq=False)
class Bound:
    """The bound of one assignment and what it is made of; entries of aggregators without clients are 0.

    Attributes:
        kappa: convergence factor.
        delta: residual error.
        bound: ``kappa * initial_gap + delta``.
        beta: each aggregator's share of the assigned samples, [aggregators].
        gamma: Gamma_j, what one local step in cluster j adds to the error (Lemma 1), [aggregators].
        xi: squared distance between the cluster's gradient and the whole gradient, [aggregators].
        psi: share of the inter-cluster aggregations that are j's, [aggregators]; equal in the synchronous patterns; if
            given by `Problem.frequencies`, also that of aggregators without clients.
        tau_max: largest staleness; 0 in the synchronous patterns.
        completion_seconds: one intra-cluster aggregation (eq. 50), [aggregators].
        event_seconds: T' of those and the transfer, [aggregators].
        steps: T; not always an integer where it follows from `Problem.seconds`.
        virtual_seconds: virtual time that T local steps take.
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


# Local searches evaluate one problem many times; a single entry, so that no large network is kept alive.
_check_once = lru_cache(maxsize=1)(check)
_transfer_seconds = lru_cache(maxsize=1)(pattern_transfer_seconds)


def evaluate(problem: Problem, labels: Ids) -> Bound:
    """Return the bound of an assignment, over the clients that it assigns (eq. 49, Table IV, Theorems 1 to 4).

    The theorems hold for T'' = 1 and ``lr < mu / (2 * smoothness ** 2)``; elsewhere the bound only ranks assignments.

    The clock gives each aggregator with clients the frequency ``f_j = 1 / event_seconds_j``. Synchronous patterns
    make one inter-cluster aggregation every ``max(event_seconds)``; asynchronous ones make ``sum(f)`` a second, so that
    ``psi_j = f_j / sum(f)`` and ``tau_max = 1 / min(psi) - 1``. `Problem.frequencies` replace all f_j, also
    those of aggregators without clients, in psi and tau_max; they do not change how much fits into a time. With
    `Problem.seconds`, R is the real number of aggregations that fit and ``T = R * H``; of DecSyn's sum over
    aggregations the last, unfinished one then counts ``(1 - rho0 ** (T - H * floor(R))) / (1 - rho0 ** H)`` times, so
    that the bound is continuous in R.

    Args:
        problem: what `check` accepts.
        labels: each client's aggregator, or -1 for one not assigned yet, [clients].

    Raises:
        InputError: what `check` raises; labels of another shape or range; nobody assigned; an event of 0 seconds
            in an asynchronous pattern or with `Problem.seconds`.

    >>> from atoll.network.network import Network
    >>> network = Network(np.ones(2), np.ones((2, 1)), np.ones(1), np.zeros((1, 1)), ((),))
    >>> problem = Problem("censyn", network, np.ones(2), np.eye(2) - 0.5, np.full(1, np.inf), steps=100)
    >>> round(evaluate(problem, np.zeros(2, np.int64)).bound, 4)  # equal shares: only kappa * initial_gap is left
    0.8419
    """
    _check_once(problem)
    samples = samples_of(problem, labels)
    used = np.flatnonzero(samples)
    held = samples[used]
    if not len(used):
        raise InputError("clustering: labels give no client an aggregator: at least one client must have one")
    completion, events = clock_of(problem, labels, samples)
    xi, gamma = _xi_gamma(problem, labels, used, held)
    terms = _terms(problem, used, held, gamma, events[used])
    kappa, delta = _FORMULAS[problem.pattern](terms)

    given = problem.frequencies if problem.pattern.endswith("asy") else None

    def spread(values: Floats) -> Floats:
        whole = np.zeros(len(samples))
        whole[used] = values
        return whole

    return Bound(
        kappa=kappa,
        delta=delta,
        bound=kappa * problem.initial_gap + delta,
        beta=spread(terms.beta),
        gamma=spread(gamma),
        xi=spread(xi),
        psi=spread(terms.psi) if given is None else given / given.sum(),
        tau_max=terms.tau_max,
        completion_seconds=completion,
        event_seconds=events,
        steps=terms.steps,
        virtual_seconds=terms.aggregations * terms.seconds,
    )


def samples_of(problem: Problem, labels: Ids) -> Floats:
    """Return the samples that each aggregator's clients hold, D_j, [aggregators].

    Raises:
        InputError: labels of another shape or range.
    """
    check_labels(problem.network, labels)
    assigned = labels >= 0
    held = np.bincount(labels[assigned], problem.sizes[assigned], minlength=problem.network.aggregators)
    return held.astype(float)


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


def mixing_matrix(problem: Problem, used: Ids, samples: Floats) -> Floats:
    """Return S of the used aggregators: ``sigma_jj' = D_j' / sum of D over S_j`` (eq. 10)."""
    mixing = problem.network.closed_neighbourhoods[used[:, None], used] * samples
    return np.asarray(mixing / mixing.sum(axis=1, keepdims=True))


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


@dataclass(frozen=True, eq=False)
class _Terms:
    """What the formulas are made of; arrays are over the aggregators with clients.

    Attributes:
        drop: ``1 - rho0 = mu * eta``.
        log_rho: logarithm of rho0, exact also where rho0 is nearly 1.
        period: H.
        aggregations: R.
        seconds: virtual time between two inter-cluster aggregations.
        mixing: S, ``sigma_jj' = D_j' / sum of D over S_j`` (eq. 10); the unit matrix in the central patterns.
    """

    drop: float
    log_rho: float
    period: int
    aggregations: float
    seconds: float
    beta: Floats
    gamma: Floats
    psi: Floats
    tau_max: float
    mixing: Floats

    @property
    def steps(self) -> float:
        """T."""
        return self.aggregations * self.period

    def left(self, steps: float) -> float:
        """``rho0 ** steps``."""
        return math.exp(steps * self.log_rho)

    def lost(self, steps: float) -> float:
        """``1 - rho0 ** steps``."""
        return -math.expm1(steps * self.log_rho)


def _terms(problem: Problem, used: Ids, samples: Floats, gamma: Floats, events: Floats) -> _Terms:
    asynchronous = problem.pattern.endswith("asy")
    if (asynchronous or problem.seconds is not None) and events.min() <= 0:
        raise InputError(
            f"network: an event of aggregator {used[events.argmin()]} takes 0 seconds: must take longer "
            f"{'in an asynchronous pattern' if asynchronous else 'where a virtual time is given'}"
        )
    seconds, psi, tau_max = float(events.max()), np.full(len(used), 1 / len(used)), 0.0  # all wait for the slowest
    if asynchronous:  # each merges at its own rate, so rates add up
        clock = 1 / events
        seconds = 1 / float(clock.sum())
        frequencies = clock if problem.frequencies is None else problem.frequencies
        psi = frequencies / frequencies.sum()
        tau_max = float(1 / psi.min()) - 1 if problem.tau_max is None else problem.tau_max
        psi = psi if problem.frequencies is None else psi[used]
    mixing = np.eye(len(used))
    if problem.pattern.startswith("dec"):
        mixing = mixing_matrix(problem, used, samples)
    period = problem.intra_rounds * problem.local_steps
    return _Terms(
        drop=problem.mu * problem.lr,
        log_rho=math.log1p(-problem.mu * problem.lr),
        period=period,
        aggregations=problem.steps / period if problem.seconds is None else problem.seconds / seconds,
        seconds=seconds,
        beta=samples / samples.sum(),
        gamma=gamma,
        psi=psi,
        tau_max=tau_max,
        mixing=mixing,
    )


def _censyn(terms: _Terms) -> tuple[float, float]:
    """Theorem 1: ``kappa = rho0^T``, ``delta = (1 - rho0^T) / (1 - rho0) * sum_j beta_j Gamma_j``."""
    return terms.left(terms.steps), terms.lost(terms.steps) / terms.drop * float(terms.beta @ terms.gamma)


def _cenasy(terms: _Terms) -> tuple[float, float]:
    """Theorem 2, with the exponent that its Lemma 2 gives: R / (1 + tau_max)."""
    # A merge takes cluster j with probability psi_j, and then replaces the share beta_j of the server's model.
    met = terms.psi * terms.beta
    meeting = min(float(met.sum()), 1.0)
    taken = terms.lost(terms.period) * meeting
    exponent = terms.aggregations / (1 + terms.tau_max)
    if taken < 0.5:
        kappa = math.exp(exponent * math.log1p(-taken))
    else:  # 1 - taken would cancel
        kappa = (1 - meeting + meeting * terms.left(terms.period)) ** exponent
    return kappa, float(met @ terms.gamma) / (terms.drop * float(met.sum()))


def _decsyn(terms: _Terms) -> tuple[float, float]:
    """Theorem 3: ``delta = B * (sum over r < R of z^r S^r) * S * Delta``: errors fade by z = rho0^H and mix by S."""
    first = terms.mixing @ (terms.lost(terms.period) / terms.drop * terms.gamma)
    whole = int(terms.aggregations)
    done, power = _discounted_powers(terms.mixing, first, terms.period * terms.log_rho, whole)
    part = terms.lost(terms.steps - whole * terms.period) / terms.lost(terms.period)
    unfinished = part * terms.left(whole * terms.period) * (power @ first)
    return terms.left(terms.steps), float(terms.beta @ (done + unfinished))


def _discounted_powers(mixing: Floats, first: Floats, log_factor: float, count: int) -> tuple[Floats, Floats]:
    """Return the sum over r < count of ``exp(r * log_factor) * mixing^r @ first``, and ``mixing^count``.

    Doubles the number of summands, bit by bit of `count`. Unlike a solution with I - X, nothing cancels when the factor
    is nearly 1.
    """
    total, power, summands = np.zeros_like(first), np.eye(len(first)), 0
    for bit in f"{count:b}":
        total = total + math.exp(summands * log_factor) * (power @ total)
        power, summands = power @ power, 2 * summands
        if bit == "1":
            total = first + math.exp(log_factor) * (mixing @ total)
            power, summands = mixing @ power, summands + 1
    return total, power


def _decasy(terms: _Terms) -> tuple[float, float]:
    """Theorem 4: ``kappa = sum_j beta_j rho0^(psi_j T / (1 + tau_max))``: each cluster has its own progress psi_j T."""
    logs = terms.psi * terms.steps * terms.log_rho
    kappa = float(terms.beta @ np.exp(logs / (1 + terms.tau_max)))
    return kappa, float((terms.beta * -np.expm1(logs)) @ (terms.mixing @ terms.gamma)) / terms.drop


_FORMULAS: dict[Pattern, Callable[[_Terms], tuple[float, float]]] = {
    "censyn": _censyn,
    "cenasy": _cenasy,
    "decsyn": _decsyn,
    "decasy": _decasy,
}
