"""MOON: FedAvg whose clients keep their features near the received model's (Li, He and Song 2021)."""

from dataclasses import replace
from functools import partial

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.schedules.clock import Clock
from atoll.support.limits import NotNegative, PositiveFloat, Share


@checked
def moon(
    population: Population,
    rule: LocalRule,
    rounds: int,
    mu: NotNegative = 1.0,
    temperature: PositiveFloat = 0.5,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """MOON: clients add to their loss how far features are from the received model's, compared with their last one's.

    Li, He and Song 2021, "Model-contrastive federated learning", Algorithm 1. With z, z_glob and z_prev the features of
    the model in training, the received one and the client's from its last round, a client descends ``l - mu * log(
    exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)))``, sim being the cosine.
    Features are what is given to the layer with parameters that is called last; a projection head is part of the model.
    A client's first z_prev is the received model's, which gives no gradient. With mu = 0 it is FedAvg. A round takes
    five thirds of the computation, a backward pass counting as two forward ones.

    Args:
        mu: weight of the contrastive loss.
        temperature: tau.
    """
    from atoll.methods.parts.features import ContrastiveTrainer  # late: reading settings needs no PyTorch

    longer = None if clock is None else replace(clock, compute_seconds=clock.compute_seconds * 5 / 3)
    trainer = partial(ContrastiveTrainer, mu=mu, temperature=temperature)
    return replace(fedavg(population, rule, rounds, fraction, longer, seed), trainer=trainer)
