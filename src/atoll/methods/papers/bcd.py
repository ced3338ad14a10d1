"""Block coordinate descent over personal models and a global one that a quadratic penalty ties (Wu et al. 2021).

Wu et al. 2021, "Federated Block Coordinate Descent Scheme for Learning Global and Personalized Models", also calls
itself FedBCD, and is not the vertical method of that name (`fedbcd`). It minimises over theta_1, ..., theta_N and z

    sum over i of f_i(theta_i) + (gamma / 2) * ||theta_i - z||^2,

a client's theta_i by steps of SGD, the server's z by the mean of all theta_i, where the penalty is least.
"""

from dataclasses import dataclass, replace

from atoll.aggregation.mean import Weighted, add_updates
from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.schedules.events import Clock
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
    """FedBCD of personal models: each client keeps its own, pulled toward the server's, which is the mean of all.

    Wu et al. 2021, one cloud. All theta_i and z begin as the initial model. A round's cohort takes `rule.steps` steps
    ``theta_i <- theta_i - eta * (g_i(theta_i) + gamma * (theta_i - z))``, each from its own theta_i; then
    ``z <- z - server_lr * (z - mean of all theta_i)``, clients outside the cohort counting with what they have.

    A client sends what its theta_i changed by, added to z, so the server knows the mean without keeping N models.

    Args:
        population: the clients; all count alike.
        rule: what a client does.
        rounds: T.
        gamma: weight of the penalty; 0: clients train alone.
        server_lr: step of the server's model toward the mean; 1 minimises over z exactly.
        fraction: share of the clients in a cohort.
        clock: how long clients take; None: every round takes a second.
        seed: what cohorts are drawn from.

    Raises:
        InputError: the rule has a proximal term of its own, or resamples.
    """
    refuse_proximal(rule, "method.name = 'bcd', whose penalty is method.gamma")
    from atoll.methods.parts.personal_trainer import PersonalTrainer  # needs PyTorch, which settings do not wait for

    return replace(
        fedavg(population, replace(rule, proximal=gamma), rounds, fraction, clock, seed),
        trainer=PersonalTrainer,
        combine=AddShares(len(population)),
        server_rule=None if server_lr == 1 else StepToMean(server_lr),
    )


@dataclass(frozen=True)
class AddShares:
    """The combine rule ``z + (1 / N) * sum of (theta_i's change)``, N counting all clients: the new mean of theta_i."""

    clients: int

    def __call__(self, models: Weighted, start: Model, cohort_weight: float) -> Model:
        """Return what the server's model becomes."""
        return add_updates(start, ((1 / self.clients, model, start) for _, model in models))


@dataclass(frozen=True)
class StepToMean:
    """The server rule ``z <- z - lr * (z - mean of all theta_i)``; what it keeps is that mean."""

    lr: float

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, Model]:
        """Return the new z and the new mean, which has moved by as much as the merged model has from z."""
        mean = add_updates(state or before, [(1.0, merged, before)])
        moved = {name: before[name].lerp(mean[name], self.lr) for name in mean if mean[name].is_floating_point()}
        return merged | moved, mean
