"""Per-FedAvg: a common model from which one step on its data suits each client (Fallah et al. 2020)."""

from dataclasses import replace
from functools import partial
from typing import Literal

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.equal_clients import weigh_equally
from atoll.methods.parts.rule_requirements import refuse_proximal, require_sgd
from atoll.schedules.clock import Clock
from atoll.support.limits import NotNegative, PositiveFloat, Share

Order = Literal["hessian-free", "first-order"]


@checked
def perfedavg(
    population: Population,
    rule: LocalRule,
    rounds: int,
    variant: Order = "hessian-free",
    inner_lr: NotNegative = 0.01,
    delta: PositiveFloat = 0.001,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """Per-FedAvg: FedAvg of the losses that clients have after one step of their own (MAML).

    Fallah, Mokhtari and Ozdaglar 2020, "Personalized federated learning with theoretical guarantees: a model-agnostic
    meta-learning approach", Algorithm 1. A local step draws three batches: ``m = w - alpha * g(w; D)``, then ``w <- w -
    beta * (I - alpha * H(w; D'')) g(m; D')``, beta being the rule's rate. `first-order` leaves H out; `hessian-free`
    has ``H(w) d = (g(w + delta * d) - g(w - delta * d)) / (2 delta)``. A client's personal model is the last received
    one after a step of rate alpha on all of its data. Running statistics are w's on D. With alpha = 0 it is FedAvg with
    equal weights. A step computes two gradients, `hessian-free` four.

    Args:
        population: the clients, equally weighted.
        rule: the local training rule; plain SGD.
        rounds: number of rounds, K.
        variant: how the Hessian is treated.
        inner_lr: rate of clients' own step, alpha.
        delta: length of the differences, relative to the gradient.

    Raises:
        InputError: the optimiser is not plain SGD, or there is a proximal term.
    """
    require_sgd(rule, why := "method.name = 'perfedavg', which takes the steps of its paper")
    refuse_proximal(rule, why)
    from atoll.methods.parts.gradient_trainers import MetaTrainer  # late: reading settings needs no PyTorch

    gradients, difference = (4, delta) if variant == "hessian-free" else (2, None)
    plain = weigh_equally(fedavg(population, rule, rounds, fraction, clock and clock.slower(gradients), seed))
    return replace(plain, trainer=partial(MetaTrainer, inner_lr=inner_lr, delta=difference))
