"""APFL: each client mixes a model of its own with the server's (Deng et al. 2020)."""

from dataclasses import replace
from functools import partial

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.equal_clients import weigh_equally
from atoll.methods.parts.rule_requirements import refuse_proximal, require_sgd
from atoll.schedules.clock import Clock
from atoll.support.limits import Probability, Share


@checked
def apfl(
    population: Population,
    rule: LocalRule,
    rounds: int,
    alpha: Probability = 0.5,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """APFL: FedAvg, and each client trains a model v of its own for its mixture with the server's.

    Deng, Kamani and Mahdavi 2020, "Adaptive personalized federated learning", Algorithm 1. With the mixed model ``m =
    alpha v + (1 - alpha) w``, a client of the cohort takes the steps ``w <- w - eta * g(w)`` and ``v <- v - eta * alpha
    * g(m)``, both gradients on one batch and before either step; w starts from the server's model, v from the client's
    last one, at first the initial model. The server's model is FedAvg's with equal weights. alpha is the same for all
    clients and stays; the paper's adaptive one is not available. Running statistics of m and w are kept apart. A round
    takes twice the computation.

    Args:
        population: the clients, equally weighted.
        rule: the local training rule; plain SGD.
        alpha: share of a client's own model; 0: FedAvg, 1: trained alone.

    Raises:
        InputError: the optimiser is not plain SGD, or there is a proximal term.
    """
    require_sgd(rule, why := "method.name = 'apfl', which takes its steps at mixed models")
    refuse_proximal(rule, why)
    from atoll.methods.parts.gradient_trainers import MixedTrainer  # late: reading settings needs no PyTorch

    plain = weigh_equally(fedavg(population, rule, rounds, fraction, clock and clock.slower(2), seed))
    return replace(plain, trainer=partial(MixedTrainer, alpha=alpha))
