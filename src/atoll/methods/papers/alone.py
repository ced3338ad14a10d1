"""Local training without federation: the baseline for personal models."""

from dataclasses import replace

import numpy as np

from atoll.aggregation.mean import keep_start
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.schedules.clock import Clock
from atoll.schedules.packed import pack
from atoll.support.errors import InputError
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
    if rule.proximal:
        raise InputError(
            f"local.proximal = {rule.proximal:g}: cannot be used with method.name = 'local', where nothing is sent"
        )
    from atoll.methods.parts.personal_trainer import LoneTrainer  # late: reading settings needs no PyTorch

    if clock is not None:
        clock = replace(clock, upload_seconds=np.zeros(len(population)))
    method = fedavg(population, rule, rounds, fraction, clock, seed)
    events = pack(replace(event, models_down=0, models_up=0) for event in method.schedule.events)
    schedule = replace(method.schedule, events=events)
    return replace(method, schedule=schedule, trainer=LoneTrainer, combine=keep_start)
