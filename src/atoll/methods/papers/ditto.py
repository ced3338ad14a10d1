"""Ditto: FedAvg's model, and beside it each client's own, pulled toward it (Li et al. 2021)."""

from dataclasses import replace
from functools import partial

from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.schedules.events import Clock
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
    """Ditto: FedAvg, and each client of a cohort also trains a model of its own near the one that it was sent.

    Li et al. 2021, Algorithm 1. Beside the `rule.steps` steps that it takes from the server's model w, a client takes
    as many ``v_k <- v_k - eta * (g_k(v_k) + lambda * (v_k - w))`` on the same batches. All v_k begin as the initial
    model. What the server has is FedAvg's to the bit; a round takes twice as long to compute.

    Args:
        population: the clients.
        rule: what a client does; a proximal term of its own is the server's model's alone.
        rounds: T.
        penalty: lambda, the pull of clients' own models toward the server's; 0: they are trained alone.
        fraction: share of the clients in a cohort.
        clock: how long clients take; None: every round takes a second.
        seed: what cohorts are drawn from.
    """
    from atoll.methods.parts.personal_trainer import DittoTrainer  # needs PyTorch, which settings do not wait for

    twice = None if clock is None else replace(clock, compute_seconds=2 * clock.compute_seconds)
    method = fedavg(population, rule, rounds, fraction, twice, seed)
    return replace(method, trainer=partial(DittoTrainer, penalty=penalty))
