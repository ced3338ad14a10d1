"""FeSEM: several centres, each the mean of the client models nearest to it (Xie et al. 2020)."""

from dataclasses import dataclass

import numpy as np

from atoll.aggregation.mean import keep_start, mean
from atoll.data.population import Population
from atoll.engine.grouping import Grouping
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import as_vectors, everyone_apart, nearest_means
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event
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
    """FeSEM: in every round clients join the centre nearest to their model, and train from its mean.

    Xie et al. 2020, "Multi-center federated learning" (Long et al. 2023), Algorithm 1. All clients train in every
    round. After it, with w_i a client's model and c_k the centres, the E-step is ``r_i = argmin over k of
    ||w_i - c_k||^2`` and the M-step ``c_k = unweighted mean of w_i over r_i = k``; an empty centre stays. A client
    then trains from its centre. The paper leaves initialisation open: here all clients first train from one model,
    and k-means of their models, run to convergence, is the first E-step.

    Args:
        clusters: number of centres, K.
        seed: seed for k-means.

    Raises:
        InputError: more centres than clients.
    """
    from atoll.methods.parts.update_trainers import ModelTrainer  # late: reading settings needs no PyTorch

    return Method(
        everyone_apart(population, clusters, rounds, clock),
        rule,
        combine=keep_start,  # centres move in the M-step
        trainer=ModelTrainer,
        labels=np.zeros(len(population), np.int64),
        regroup=ExpectationMaximisation(clusters, seed),
    )


@dataclass(frozen=True)
class ExpectationMaximisation:
    """Assigns clients to the nearest centre, then moves centres to the mean of their clients' models."""

    clusters: int
    seed: int

    def __call__(self, event: Event, state: State) -> Grouping:
        """Return each client's centre, and the models of non-empty centres."""
        models = [state.clients[k] for k in event.cohort.tolist()]
        rows = as_vectors(models)
        labels = self._nearest(rows, state) if event.index else nearest_means(rows, self.clusters, self.seed)
        near = {k: np.flatnonzero(labels == k).tolist() for k in np.unique(labels).tolist()}
        return Grouping(labels, {k: mean((1.0, models[i]) for i in own) for k, own in near.items()})

    def _nearest(self, rows: Floats, state: State) -> Ids:
        centres = as_vectors(state.starts)
        return np.asarray(np.stack([((rows - centre) ** 2).sum(axis=1) for centre in centres]).argmin(axis=0))
