"""FeSEM: several centres, each the mean of the clients whose models are nearest to it (Xie et al. 2020)."""

from dataclasses import dataclass

import numpy as np

from atoll.aggregation.mean import Weighted, mean
from atoll.data.population import Population
from atoll.engine.engine import Method, State
from atoll.engine.grouping import Grouping
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import Turn, apart, as_vectors, nearest_means
from atoll.schedules.events import Clock, Event
from atoll.support.arrays import Floats, Ids
from atoll.support.limits import Positive


@checked
def fesem(
    population: Population,
    rule: LocalRule,
    rounds: int,
    clusters: Positive = 4,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FeSEM: every round clients go to the centre nearest to their models, and train from the mean of those there.

    Xie et al. 2020, "Multi-center federated learning" (Long et al. 2023), Algorithm 1. All clients train in every
    round. After it, with w_i a client's model and c_k the centres, the E-step is ``r_i = argmin over k of
    ||w_i - c_k||^2`` and the M-step ``c_k = mean of w_i over r_i = k``, all clients counting alike; one that nobody is
    near stays. A client then trains from its centre. How centres begin is open: here all clients train from one
    model first, and k-means of their models, run to its end, is the first E-step.

    Args:
        population: the clients.
        rule: what a client does.
        rounds: T.
        clusters: number of centres, K.
        clock: how long clients take; None: every round takes a second.
        seed: what k-means begins from.

    Raises:
        InputError: more centres than clients.
    """
    from atoll.methods.parts.update_trainers import ModelTrainer  # needs PyTorch, which settings do not wait for

    everyone = np.arange(len(population))
    turns = (Turn(everyone, j, regroups=True) for j in range(rounds))
    return Method(
        apart(population, clusters, turns, rounds, clock),
        rule,
        combine=keep_start,
        trainer=ModelTrainer,
        labels=np.zeros_like(everyone),
        regroup=ExpectationMaximisation(clusters, seed),
    )


def keep_start(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Leave a centre where it is: it moves in the M-step, to the mean of whoever is near then (a combine rule)."""
    return start


@dataclass(frozen=True)
class ExpectationMaximisation:
    """Moves clients to the nearest centre, then centres to the mean of their clients' models."""

    clusters: int
    seed: int

    def __call__(self, event: Event, state: State) -> Grouping:
        """Return who is near which centre, and the centres of those that somebody is near."""
        models = [state.clients[k] for k in event.cohort.tolist()]
        rows = as_vectors(models)
        labels = self._nearest(rows, state) if event.index else nearest_means(rows, self.clusters, self.seed)
        near = {k: np.flatnonzero(labels == k).tolist() for k in np.unique(labels).tolist()}
        return Grouping(labels, {k: mean((1.0, models[i]) for i in own) for k, own in near.items()})

    def _nearest(self, rows: Floats, state: State) -> Ids:
        centres = as_vectors(state.starts)
        return np.asarray(np.stack([((rows - centre) ** 2).sum(axis=1) for centre in centres]).argmin(axis=0))
