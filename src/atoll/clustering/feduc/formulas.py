"""FedUC's bound of each pattern, from a clustering's terms (Table IV, Theorems 1 to 4)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atoll.clustering.feduc.problem import Pattern, Problem
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of the formulas; arrays are over the aggregators with clients.

    Attributes:
        drop: ``1 - rho0 = mu * eta``.
        log_rho: logarithm of rho0.
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


def mixing_matrix(problem: Problem, used: Ids, samples: Floats) -> Floats:
    """Return S of the used aggregators: ``sigma_jj' = D_j' / sum of D over S_j`` (eq. 10)."""
    mixing = problem.network.closed_neighbourhoods[used[:, None], used] * samples
    return np.asarray(mixing / mixing.sum(axis=1, keepdims=True))


def make_terms(problem: Problem, used: Ids, samples: Floats, gamma: Floats, events: Floats) -> Terms:
    """Return the terms of the used aggregators, given their samples, Gamma_j and event seconds."""
    seconds, psi, tau_max = _clock_terms(problem, used, events)
    is_central = not problem.pattern.startswith("dec")
    return Terms(
        drop=problem.mu * problem.lr,
        log_rho=problem.log_rho,
        period=problem.period,
        aggregations=problem.steps / problem.period if problem.seconds is None else problem.seconds / seconds,
        seconds=seconds,
        beta=samples / samples.sum(),
        gamma=gamma,
        psi=psi,
        tau_max=tau_max,
        mixing=np.eye(len(used)) if is_central else mixing_matrix(problem, used, samples),
    )


def _clock_terms(problem: Problem, used: Ids, events: Floats) -> tuple[float, Floats, float]:
    """Return the seconds between two inter-cluster aggregations, psi and tau_max."""
    asynchronous = problem.pattern.endswith("asy")
    if (asynchronous or problem.seconds is not None) and events.min() <= 0:
        raise InputError(
            f"network: an event of aggregator {used[events.argmin()]} takes 0 seconds: must take longer "
            f"{'in an asynchronous pattern' if asynchronous else 'if a virtual time is given'}"
        )
    if not asynchronous:  # all wait for the slowest
        return float(events.max()), np.full(len(used), 1 / len(used)), 0.0
    rates = 1 / events  # each merges at its own rate, so rates add up
    frequencies = rates if problem.frequencies is None else problem.frequencies
    psi = frequencies / frequencies.sum()
    tau_max = float(1 / psi.min()) - 1 if problem.tau_max is None else problem.tau_max
    return 1 / float(rates.sum()), psi if problem.frequencies is None else psi[used], tau_max


def _censyn(terms: Terms) -> tuple[float, float]:
    """Theorem 1: ``kappa = rho0^T``, ``delta = (1 - rho0^T) / (1 - rho0) * sum_j beta_j Gamma_j``."""
    return terms.left(terms.steps), terms.lost(terms.steps) / terms.drop * float(terms.beta @ terms.gamma)


def _cenasy(terms: Terms) -> tuple[float, float]:
    """Theorem 2, with the exponent of its Lemma 2: R / (1 + tau_max)."""
    # A merge is cluster j's with probability psi_j, and then replaces the share beta_j of the server's model.
    met = terms.psi * terms.beta
    meeting = min(float(met.sum()), 1.0)
    taken = terms.lost(terms.period) * meeting
    exponent = terms.aggregations / (1 + terms.tau_max)
    if taken < 0.5:
        kappa = math.exp(exponent * math.log1p(-taken))
    else:  # 1 - taken would cancel
        kappa = (1 - meeting + meeting * terms.left(terms.period)) ** exponent
    return kappa, float(met @ terms.gamma) / (terms.drop * float(met.sum()))


def _decsyn(terms: Terms) -> tuple[float, float]:
    """Theorem 3: ``delta = B * (sum over r < R of z^r S^r) * S * Delta``: errors fade by z = rho0^H and mix by S."""
    first = terms.mixing @ (terms.lost(terms.period) / terms.drop * terms.gamma)
    whole = int(terms.aggregations)
    done, power = _discounted_powers(terms.mixing, first, terms.period * terms.log_rho, whole)
    part = terms.lost(terms.steps - whole * terms.period) / terms.lost(terms.period)
    unfinished = part * terms.left(whole * terms.period) * (power @ first)
    return terms.left(terms.steps), float(terms.beta @ (done + unfinished))


def _discounted_powers(mixing: Floats, first: Floats, log_factor: float, count: int) -> tuple[Floats, Floats]:
    """Return the sum over r < count of ``exp(r * log_factor) * mixing^r @ first``, and ``mixing^count``.

    Doubles the number of summands for each bit of `count`. Unlike with the inverse of I - X, nothing cancels when the
    factor is close to 1.
    """
    total, power, summands = np.zeros_like(first), np.eye(len(first)), 0
    for bit in f"{count:b}":
        total = total + math.exp(summands * log_factor) * (power @ total)
        power, summands = power @ power, 2 * summands
        if bit == "1":
            total = first + math.exp(log_factor) * (mixing @ total)
            power, summands = mixing @ power, summands + 1
    return total, power


def _decasy(terms: Terms) -> tuple[float, float]:
    """Theorem 4: ``kappa = sum_j beta_j rho0^(psi_j T / (1 + tau_max))``: each cluster has its own progress psi_j T."""
    logs = terms.psi * terms.steps * terms.log_rho
    kappa = float(terms.beta @ np.exp(logs / (1 + terms.tau_max)))
    return kappa, float((terms.beta * -np.expm1(logs)) @ (terms.mixing @ terms.gamma)) / terms.drop


FORMULAS: dict[Pattern, Callable[[Terms], tuple[float, float]]] = {
    "censyn": _censyn,
    "cenasy": _cenasy,
    "decsyn": _decsyn,
    "decasy": _decasy,
}
