"""Ditto: FedAvg, plus a personal model per client that is pulled toward the global one (Li et al. 2021)."""

from dataclasses import replace
from functools import partial

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.schedules.clock import Clock
from atoll.support.limits import NotNegative, Share


@checked
def ditto(
    population: Population,
    rule: LocalRule,
    rounds: int,
    penalty: NotNegative = 0.1,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """Ditto: FedAvg, where each client also trains a personal model near the one it received.

    Li et al. 2021, Algorithm 1. Besides its `rule.steps` steps from the server's model w, a client takes as many
    steps ``v_k <- v_k - eta * (g_k(v_k) + lambda * (v_k - w))`` on the same batches. All v_k start from the initial
    model. The server's model is bit-identical to FedAvg's; a round takes twice the computation.

    Args:
        rule: the local training rule; its proximal term applies only to the server's model.
        penalty: weight of the pull of personal models toward the server's, lambda; 0: trained alone.
    """
    from atoll.methods.parts.personal_trainer import DittoTrainer  # late: reading settings needs no PyTorch

    method = fedavg(population, rule, rounds, fraction, clock and clock.slower(2), seed)
    return replace(method, trainer=partial(DittoTrainer, penalty=penalty))
