"""FedAMP: every client has a model in the cloud, mixed more from clients whose models are near (Huang et al. 2021)."""

from dataclasses import dataclass, replace

import numpy as np

from atoll.aggregation.mean import mean
from atoll.data.population import Population
from atoll.engine.grouping import Grouping
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.learned import as_vectors, everyone_apart
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.schedules.clock import Clock
from atoll.schedules.events import Event
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.limits import NotNegative, PositiveFloat


@checked
def fedamp(
    population: Population,
    rule: LocalRule,
    rounds: int,
    penalty: NotNegative = 1.0,
    alpha: PositiveFloat = 10000.0,
    sigma: PositiveFloat = 1000000.0,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedAMP: clients train near models that the cloud mixes for each of them, by attentive message passing.

    Huang et al. 2021, "Personalized cross-silo federated learning on non-IID data", Algorithm 1. With w_i the clients'
    models, the cloud makes ``u_i = sum_j xi_ij w_j``, where ``xi_ij = alpha * exp(-||w_i - w_j||^2 / sigma) / sigma``
    for j other than i, and xi_ii is the rest to 1. Client i then minimises ``F_i(w) + lambda / (2 alpha) * ||w -
    u_i||^2``, here by the local rule from u_i. All clients take part in every round; the w_i start from one model.

    Args:
        penalty: lambda.
        alpha: step of the mixing, alpha_k.
        sigma: squared distance over which clients' weights fall, sigma.
        seed: unused, as all clients train.

    Raises:
        InputError: alpha is so large that a client's weight of its own model could be negative, or the rule has its own
            proximal term.
    """
    refuse_proximal(rule, "method.name = 'fedamp', whose penalty is method.penalty")
    others = len(population) - 1
    if alpha * others > sigma:
        raise InputError(
            f"method.alpha = {alpha:g}: must be at most method.sigma / {others} = {sigma / others:g}, so that "
            f"{others + 1} clients cannot leave one a negative weight of its own model"
        )
    from atoll.methods.parts.update_trainers import ModelTrainer  # late: reading settings needs no PyTorch

    return Method(
        everyone_apart(population, len(population), rounds, clock),
        replace(rule, proximal=penalty / alpha),
        trainer=ModelTrainer,
        labels=np.arange(len(population)),
        regroup=MessagePassing(alpha, sigma),
    )


@dataclass(frozen=True)
class MessagePassing:
    """Mixes a model for each client, which is a cluster of its own."""

    alpha: float
    sigma: float

    def __call__(self, event: Event, state: State) -> Grouping:
        """Return each client's u_i."""
        assert state.labels is not None, "Method.labels are given"
        models = [state.clients[k] for k in state.labels.tolist()]
        shares = attention(as_vectors(models), self.alpha, self.sigma)
        mixed = (mean(zip(own.tolist(), models, strict=True)) for own in shares)
        return Grouping(state.labels, dict(enumerate(mixed)))


def attention(rows: Floats, alpha: float, sigma: float) -> Floats:
    """Return xi, [clients, clients], from clients' models as rows."""
    distances = np.stack([((rows - row) ** 2).sum(axis=1) for row in rows])
    shares = alpha / sigma * np.exp(-distances / sigma)
    np.fill_diagonal(shares, 0.0)
    np.fill_diagonal(shares, 1 - shares.sum(axis=1))
    return shares
