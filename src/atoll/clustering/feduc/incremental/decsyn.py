"""DecSyn's bound, for one more client at each aggregator.

With z = rho0^H, A the closed neighbourhoods (0 or 1), D the clusters' samples and N = A D, Theorem 3's S is
``diag(1/N) A diag(D)``, and its residual error

    B * (sum over r < R of z^r S^r) * S * Delta

needs no sum if z^R is negligible compared with 1: the sum is then the inverse of I - z S. As one more client at j
changes S only in the rows of j's neighbours, a maintained inverse gives all candidates by small systems (Sherman,
Morrison, Woodbury). Otherwise every candidate is summed separately; see `powers`.
"""

from dataclasses import dataclass

import numpy as np

from atoll.clustering.feduc.incremental.central import synchronous_aggregations
from atoll.clustering.feduc.incremental.clusters import Clusters, Offer
from atoll.clustering.feduc.incremental.powers import residuals_of_short_runs
from atoll.clustering.feduc.problem import Problem
from atoll.support.arrays import Floats, Ids

_NEGLIGIBLE = -36.0  # exp(-36) is 2e-16, a rounding error
_REFRESH = 64  # placements between inversions from scratch


def decsyn(problem: Problem, clusters: Clusters, offer: Offer, inverse: "Inverse") -> Floats:
    """Return Theorem 3's bound with the offer's client at each aggregator in turn, [aggregators]."""
    step = problem.period * problem.log_rho  # log z
    lost = -np.expm1(step) / (problem.mu * problem.lr)  # Delta_j / Gamma_j
    aggregations = synchronous_aggregations(problem, clusters, offer)
    logs = aggregations * step
    now, own = lost * clusters.gamma, lost * offer.gamma
    if logs.max() < _NEGLIGIBLE:
        delta = inverse.residuals(clusters, offer, now, own)
    else:
        near = problem.network.closed_neighbourhoods
        delta = residuals_of_short_runs(near, clusters, offer, now, own, aggregations, step)
    return np.asarray(np.exp(logs) * problem.initial_gap + delta)


class Inverse:
    """The inverse P of ``K = diag(N) - z A diag(D)``; Theorem 3's residual is ``D P A diag(D) Delta / total``.

    It follows `Clusters.held` by itself. One more client with d samples at j adds to K, in each row l of j's closed
    neighbourhood, d at (l, l) and -z d at (l, j). A row whose N is 0 has no weight and holds 1 at (l, l).
    """

    def __init__(self, problem: Problem) -> None:
        near = problem.network.closed_neighbourhoods
        aggregators = len(near)
        self._near, self._factor = near, float(np.exp(problem.period * problem.log_rho))
        degrees = near.sum(axis=1).astype(np.int64)
        self._real = np.asarray(np.arange(degrees.max()) < degrees[:, None], np.float64)
        self._places = np.repeat(np.arange(aggregators)[:, None], degrees.max(), axis=1)  # padded with itself
        self._places[self._real > 0] = np.nonzero(near)[1]
        self._held = np.zeros(aggregators)
        self._inverse: Floats = np.eye(aggregators)
        self._placements = 0

    def residuals(self, clusters: Clusters, offer: Offer, now: Floats, own: Floats) -> Floats:
        """Return ``B * inverse(I - z S) * S * Delta`` for the client at each aggregator, [aggregators].

        `now` is Delta, and `own` each cluster's with the client.
        """
        for aggregator in np.flatnonzero(clusters.held != self._held).tolist():
            self._grow(aggregator, clusters.held[aggregator])
        real, held = self._real, clusters.held
        grown = offer.held * own - held * now
        left = held @ self._inverse
        right = self._inverse @ (self._near @ (held * now))
        change = self._change(np.arange(len(held)), offer.samples)
        own_sum = np.einsum("jb,jb->j", change.own_row, real)
        near_right = right[self._places] + grown[:, None] * np.einsum("jab,jb->ja", change.block, real)
        moved = change.diagonal * near_right - change.pull * (right + grown * own_sum)[:, None]
        solved = np.linalg.solve(change.system, moved[..., None])[..., 0]
        near_left = left[self._places]
        whole = held @ right + offer.samples * right
        whole += grown * (np.einsum("jb,jb->j", near_left, real) + offer.samples * own_sum)
        whole -= np.einsum("jb,jb->j", near_left + offer.samples * change.own_row, solved)
        return np.asarray(whole / offer.total)

    def _grow(self, aggregator: int, held: float) -> None:
        """Update the inverse for the samples held at the aggregator, which have grown."""
        self._placements += 1
        if self._placements % _REFRESH == 0:
            self._held[aggregator] = held
            around = self._near @ self._held
            kernel = np.diag(np.where(around > 0, around, 1.0)) - self._factor * self._near * self._held
            self._inverse = np.asarray(np.linalg.inv(kernel), np.float64)
        else:
            places = self._places[aggregator]
            change = self._change(np.array([aggregator]), held - self._held[aggregator])
            rows = change.diagonal[0, :, None] * self._inverse[places] - np.outer(
                change.pull[0], self._inverse[aggregator]
            )
            self._inverse -= self._inverse[:, places] @ np.linalg.solve(change.system[0], rows)
            self._held[aggregator] = held

    def _change(self, aggregators: Ids, samples: float) -> "_Change":
        """Return how this many more samples at each of the aggregators, one at a time, change K."""
        places, real = self._places[aggregators], self._real[aggregators]
        around = (self._near @ self._held)[places]
        diagonal = np.where(around > 0, samples, samples - 1) * real
        pull = self._factor * samples * real
        block = self._inverse[places[:, :, None], places[:, None, :]]
        own_row = self._inverse[aggregators[:, None], places]
        system = diagonal[:, :, None] * block - pull[:, :, None] * own_row[:, None, :]
        system += np.eye(places.shape[1])
        return _Change(diagonal, pull, block, own_row, system)


@dataclass(frozen=True, eq=False)
class _Change:
    """A client's addition to K at aggregator j; rows are over j's closed neighbourhood, padded with zeros.

    Attributes:
        diagonal: what is added at (l, l), [candidates, neighbours].
        pull: what is taken at (l, j), [candidates, neighbours].
        block: the inverse among the neighbourhood, [candidates, neighbours, neighbours].
        own_row: the inverse from j to the neighbourhood, [candidates, neighbours].
        system: the small matrix of the Woodbury formula, [candidates, neighbours, neighbours].
    """

    diagonal: Floats
    pull: Floats
    block: Floats
    own_row: Floats
    system: Floats
