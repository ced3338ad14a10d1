"""Local training without federation: the baseline for personal models."""

from dataclasses import replace

from atoll.aggregation.mean import keep_start
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import unsent
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.schedules.clock import Clock
from atoll.support.limits import Share


@checked
def alone(
    population: Population,
    rule: LocalRule,
    rounds: int,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """Local training: the clients and batches of FedAvg, but each client continues from its own model.

    Nothing is sent, and the server keeps the initial model; the metric `client_accuracy` measures clients' models.

    Args:
        fraction: share of clients that train in each round, as in FedAvg, for equal work.
        clock: clients' training times; None: every round takes one second.

    Raises:
        InputError: the rule has a proximal term, but there is no communicated model for it to pull toward.
    """
    refuse_proximal(rule, "method.name = 'local', where nothing is sent")
    from atoll.methods.parts.personal_trainer import LoneTrainer  # late: reading settings needs no PyTorch

    return replace(unsent(population, rule, rounds, fraction, clock, seed), trainer=LoneTrainer, combine=keep_start)
