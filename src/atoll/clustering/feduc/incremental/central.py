"""The bounds of the patterns with a server, for one more client at each aggregator."""

import numpy as np

from atoll.clustering.feduc.incremental.clusters import Clusters, Offer, most_of_others, sums_of_others
from atoll.clustering.feduc.problem import Problem
from atoll.support.arrays import Floats


def censyn(problem: Problem, clusters: Clusters, offer: Offer) -> Floats:
    """Return Theorem 1's bound with the offer's client at each aggregator in turn, [aggregators]."""
    logs = synchronous_aggregations(problem, clusters, offer) * problem.period * problem.log_rho
    mean_gamma = (sums_of_others(clusters.held * clusters.gamma) + offer.held * offer.gamma) / offer.total
    delta = -np.expm1(logs) / (problem.mu * problem.lr) * mean_gamma
    return np.asarray(np.exp(logs) * problem.initial_gap + delta)


def cenasy(problem: Problem, clusters: Clusters, offer: Offer) -> Floats:
    """Return Theorem 2's bound with the offer's client at each aggregator in turn, [aggregators].

    Only the ratios of psi_j matter, so a candidate changes one term of each sum.
    """
    total, slowest, given, given_now = asynchronous_clock(problem, clusters, offer)
    met = given * offer.held
    met_now = given_now * clusters.held
    # Over the other clusters: the sums of psi_j, psi_j D_j and psi_j D_j Gamma_j; then the candidate's own terms.
    others = sums_of_others(np.stack([given_now, met_now, met_now * clusters.gamma]))
    weight, met_sum, residual_sum = others + np.stack([given, met, met * offer.gamma])
    if problem.frequencies is not None:
        weight = np.full_like(weight, problem.frequencies.sum())
    drop = problem.mu * problem.lr
    meeting = np.minimum(met_sum / (weight * offer.total), 1.0)
    kept = np.exp(problem.period * problem.log_rho)
    taken = -np.expm1(problem.period * problem.log_rho) * meeting
    # If `taken` is close to 1, 1 - taken would cancel.
    log_left = np.where(
        taken < 0.5, np.log1p(-np.minimum(taken, 0.5)), np.log(np.maximum(1 - meeting + meeting * kept, 1e-300))
    )
    exponent = asynchronous_aggregations(problem, total) / staleness(problem, total, slowest)
    return np.asarray(np.exp(exponent * log_left) * problem.initial_gap + residual_sum / (drop * met_sum))


def synchronous_aggregations(problem: Problem, clusters: Clusters, offer: Offer) -> Floats:
    """Return R for the client at each aggregator: the slowest cluster sets the pace, [aggregators]."""
    if problem.seconds is None:
        return np.full(len(offer.held), problem.steps / problem.period)
    return np.asarray(problem.seconds / np.maximum(most_of_others(clusters.event_seconds), offer.event_seconds))


def asynchronous_clock(problem: Problem, clusters: Clusters, offer: Offer) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the clock's values for the client at each aggregator, each [aggregators].

    Returns:
        Inter-cluster aggregations per second; the slowest cluster's event, seconds; psi_j up to one factor with the
        client; the same without it, 0 for aggregators without clients.
    """
    now = np.divide(1, clusters.event_seconds, out=np.zeros_like(clusters.held), where=clusters.held > 0)
    own = 1 / offer.event_seconds
    slowest = np.maximum(most_of_others(clusters.event_seconds), offer.event_seconds)
    total = sums_of_others(now) + own
    if problem.frequencies is None:
        return total, slowest, own, now
    return total, slowest, problem.frequencies, problem.frequencies * (clusters.held > 0)


def asynchronous_aggregations(problem: Problem, total: Floats) -> Floats:
    """Return R, [aggregators]: as set, or the number that fits into the virtual time."""
    if problem.seconds is None:
        return np.full(len(total), problem.steps / problem.period)
    return problem.seconds * total


def staleness(problem: Problem, total: Floats, slowest: Floats) -> Floats:
    """Return ``1 + tau_max``, [aggregators]."""
    if problem.tau_max is not None:
        return np.full(len(total), 1 + problem.tau_max)
    if problem.frequencies is not None:
        return np.full(len(total), problem.frequencies.sum() / problem.frequencies.min())
    return total * slowest
