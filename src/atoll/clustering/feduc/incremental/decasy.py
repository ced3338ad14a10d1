"""DecAsy's bound, for one more client at each aggregator."""

import numpy as np

from atoll.clustering.feduc.incremental.central import asynchronous_aggregations, asynchronous_clock, staleness
from atoll.clustering.feduc.incremental.clusters import Clusters, Offer
from atoll.clustering.feduc.problem import Problem
from atoll.support.arrays import Floats


def decasy(problem: Problem, clusters: Clusters, offer: Offer) -> Floats:
    """Return Theorem 4's bound with the offer's client at each aggregator in turn, [aggregators].

    A candidate changes all psi through their normaliser, so M x M exponentials are computed. Matrices have one row per
    candidate: all aggregators' terms if the client goes there.
    """
    near = problem.network.closed_neighbourhoods
    total, slowest, given, given_now = asynchronous_clock(problem, clusters, offer)
    psi = candidate_rows(given_now, given)
    psi /= psi.sum(axis=1, keepdims=True) if problem.frequencies is None else problem.frequencies.sum()
    held = candidate_rows(clusters.held, offer.held)
    psi *= (asynchronous_aggregations(problem, total) * problem.period * problem.log_rho)[:, None]
    stale = np.exp(psi / staleness(problem, total, slowest)[:, None])
    kappa = np.einsum("jl,jl->j", held, stale) / offer.total
    around = np.maximum(held @ near, 1e-300)  # no clients nearby: such a row has weight 0
    mixed = candidate_rows(clusters.held * clusters.gamma, offer.held * offer.gamma) @ near / around
    delta = np.einsum("jl,jl->j", held * -np.expm1(psi), mixed) / (offer.total * problem.mu * problem.lr)
    return np.asarray(kappa * problem.initial_gap + delta)


def candidate_rows(now: Floats, candidates: Floats) -> Floats:
    """Return `now` with each candidate's entry replaced in its own row, [aggregators, aggregators]."""
    rows = np.repeat(now[None], len(now), axis=0)
    np.fill_diagonal(rows, candidates)
    return rows
