"""Block coordinate descent on personal models tied to a global one by a quadratic penalty (Wu et al. 2021).

FedBCD: Wu et al. 2021, "Federated Block Coordinate Descent Scheme for Learning Global and Personalized Models". It
minimises over theta_1, ..., theta_N and z

    sum over i of f_i(theta_i) + (gamma / 2) * ||theta_i - z||^2,

where clients update theta_i by SGD, and the server sets z to the mean of all theta_i, which minimises the penalty.
"""

from dataclasses import dataclass, replace

from atoll.aggregation.mean import Weighted, add_updates
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.schedules.clock import Clock
from atoll.support.limits import NotNegative, Share


@checked
def bcd(
    population: Population,
    rule: LocalRule,
    rounds: int,
    gamma: NotNegative = 2.0,
    server_lr: Share = 1.0,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedBCD for personal models: each client keeps its own, pulled toward their mean, the server's model.

    Wu et al. 2021, one cloud. All theta_i and z begin as the initial model. A round's cohort takes `rule.steps` steps
    ``theta_i <- theta_i - eta * (g_i(theta_i) + gamma * (theta_i - z))``, each from its own theta_i; then
    ``z <- z - server_lr * (z - mean of all theta_i)``, where clients outside the cohort keep their theta_i.

    Clients send z plus the change in theta_i, so the server can track the mean without storing N models.

    Args:
        population: the clients, equally weighted.
        gamma: penalty weight; 0: clients train alone.
        server_lr: the server's step toward the mean; 1 minimises over z exactly.

    Raises:
        InputError: the rule has its own proximal term.
    """
    refuse_proximal(rule, "method.name = 'bcd', whose penalty is method.gamma")
    from atoll.methods.parts.personal_trainer import PersonalTrainer  # late: reading settings needs no PyTorch

    return replace(
        fedavg(population, replace(rule, proximal=gamma), rounds, fraction, clock, seed),
        trainer=PersonalTrainer,
        combine=AddShares(len(population)),
        server_rule=None if server_lr == 1 else StepToMean(server_lr),
    )


@dataclass(frozen=True)
class AddShares:
    """The combine rule ``z + (1 / N) * sum of changes in theta_i``, where N counts all clients."""

    clients: int

    def __call__(self, models: Weighted, start: Model, cohort_weight: float) -> Model:
        """Return z plus the change in the mean of all theta_i."""
        return add_updates(start, ((1 / self.clients, model, start) for _, model in models))


@dataclass(frozen=True)
class StepToMean:
    """The server rule ``z <- z - lr * (z - mean of all theta_i)``; its state is that mean."""

    lr: float

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, Model]:
        """Return the new z and the new mean, which moves by the same amount as the merged model from z."""
        mean = add_updates(state or before, [(1.0, merged, before)])
        moved = {name: before[name].lerp(mean[name], self.lr) for name in mean if mean[name].is_floating_point()}
        return merged | moved, mean
