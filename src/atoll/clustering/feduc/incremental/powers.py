"""DecSyn's residual error if the run is too short for the infinite sum, for one more client at each aggregator.

For each candidate ``B * (sum over r < R of z^r S^r) * S * Delta`` is summed separately, either step by step, all
candidates at once, or, if that takes longer, from the eigenvalues of S. These are real: S is similar to the
symmetric ``diag(g) A diag(g)`` with ``g = sqrt(D / N)``. Aggregators without clients take no part, so a candidate's
arrays are over those with clients and, last, itself; the last has no weight where it has clients already.
"""

from dataclasses import dataclass

import numpy as np

from atoll.clustering.feduc.incremental.clusters import Clusters, Offer
from atoll.clustering.feduc.incremental.decasy import candidate_rows
from atoll.support.arrays import Floats

_STEP_COST = 12_500  # a step takes as long as this many of the n^3 operations on a candidate's n x n matrix
_AT_ONCE = 4_000_000  # entries of candidates' matrices decomposed at a time, 32 MB


def residuals_of_short_runs(
    near: Floats, clusters: Clusters, offer: Offer, now: Floats, own: Floats, aggregations: Floats, step: float
) -> Floats:
    """Return ``B * (sum over r < R of z^r S^r) * S * Delta`` for the client at each aggregator, [aggregators].

    The last, unfinished aggregation of a real R counts ``(1 - z^f) / (1 - z)``, where f is its finished part.

    `near` holds the closed neighbourhoods, `now` is Delta and `own` each cluster's with the client, `aggregations` is R
    for the client at each aggregator, and `step` log z.
    """
    used = np.flatnonzero(clusters.held)
    new = clusters.held == 0
    held = np.column_stack([candidate_rows(clusters.held, offer.held)[:, used], np.where(new, offer.held, 0)])
    first = np.column_stack([candidate_rows(now, own)[:, used], own])
    candidates = _Candidates(held, first, near[np.ix_(used, used)], near[:, used])
    by_steps = aggregations.max() * _STEP_COST < held.size * held.shape[1] ** 2
    sums = _sums_by_steps if by_steps else _sums_by_eigenvalues
    return sums(candidates, aggregations, step) / offer.total


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Each candidate's terms, over the aggregators with clients and itself.

    Attributes:
        held: D, [candidates, n].
        first: Delta, [candidates, n].
        near: closed neighbourhoods among the aggregators with clients, [n - 1, n - 1].
        links: the same from each candidate to these, [candidates, n - 1].
    """

    held: Floats
    first: Floats
    near: Floats
    links: Floats

    def around(self, values: Floats) -> Floats:
        """Return the sums of values over the closed neighbourhoods, [candidates, n]."""
        sums = np.empty_like(values)
        np.matmul(values[:, :-1], self.near, out=sums[:, :-1])
        sums[:, :-1] += values[:, -1:] * self.links
        sums[:, -1] = values[:, -1] + np.einsum("jl,jl->j", values[:, :-1], self.links)
        return sums

    def held_around(self) -> Floats:
        """Return N, and 1 where a row has no weight."""
        around = self.around(self.held)
        return np.where(around > 0, around, 1.0)


def _sums_by_steps(candidates: _Candidates, aggregations: Floats, step: float) -> Floats:
    around = candidates.held_around()
    whole, part = _whole_and_part(aggregations, step)
    sums = np.zeros(len(around))
    values = candidates.first
    for done in range(int(whole.max()) + 1):
        values = candidates.around(candidates.held * values)
        values /= around
        counted = np.where(done < whole, 1.0, np.where(done == whole, part, 0.0))
        sums += np.exp(done * step) * counted * np.einsum("jl,jl->j", candidates.held, values)
    return sums


def _sums_by_eigenvalues(candidates: _Candidates, aggregations: Floats, step: float) -> Floats:
    around = candidates.held_around()
    root = np.sqrt(candidates.held / around)
    first = np.sqrt(candidates.held * around) * candidates.first
    count, width = root.shape
    sums = np.empty(count)
    rows = max(1, _AT_ONCE // width**2)
    for low in range(0, count, rows):
        part = slice(low, low + rows)
        near = np.ones((len(root[part]), width, width))
        near[:, :-1, :-1] = candidates.near
        near[:, -1, :-1] = near[:, :-1, -1] = candidates.links[part]
        values, vectors = np.linalg.eigh(root[part, :, None] * near * root[part, None, :])
        ends = np.einsum("jl,jlk->jk", root[part], vectors) * np.einsum("jl,jlk->jk", first[part], vectors)
        powers = _discounted_sums(values, step, aggregations[part, None])
        sums[part] = np.einsum("jk,jk->j", ends * values, powers)
    return sums


def _discounted_sums(values: Floats, step: float, aggregations: Floats) -> Floats:
    """Return the sum over r < R of ``(z * values)^r`` for values from -1 to 1."""
    whole, part = _whole_and_part(aggregations, step)
    powers = (np.exp(step) * values) ** whole
    less = np.expm1(step) * values + (values - 1)  # z * values - 1
    # If the ratio is close to 1, its power minus 1 would cancel.
    near_one = less > -0.5
    small = np.where(near_one & (less != 0), less, -0.25)
    sums = np.where(near_one, np.expm1(whole * np.log1p(small)) / small, (powers - 1) / np.where(near_one, -1.0, less))
    return np.asarray(np.where(less == 0, whole, sums) + part * powers)


def _whole_and_part(aggregations: Floats, step: float) -> tuple[Floats, Floats]:
    """Return the finished aggregations, and the weight of the unfinished one."""
    whole = np.floor(aggregations)
    return whole, np.expm1((aggregations - whole) * step) / np.expm1(step)
