"""No federation: every client trains a model of its own, and nothing is sent. The baseline of personal models."""

from dataclasses import replace

import numpy as np

from atoll.aggregation.mean import Weighted
from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.schedules.events import Clock
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
    """Training alone: the clients and batches of FedAvg, but each client goes on from its own model.

    Nothing is sent, and the server's model stays the initial one; probe `client_accuracy` for what clients have.

    Args:
        population: the clients.
        rule: what a client does.
        rounds: T.
        fraction: share of the clients that train in a round, as in FedAvg, so that the work is the same.
        clock: how long clients take, uploads apart; None: every round takes a second.
        seed: what cohorts are drawn from.

    Raises:
        InputError: the rule has a proximal term, which would pull toward a model that nobody sends.
    """
    if rule.proximal:
        raise InputError(
            f"local.proximal = {rule.proximal:g}: does not go with method.name = 'local', where nothing is sent"
        )
    from atoll.methods.parts.personal_trainer import LoneTrainer  # needs PyTorch, which settings do not wait for

    if clock is not None:
        clock = replace(clock, upload_seconds=np.zeros(len(population)))
    method = fedavg(population, rule, rounds, fraction, clock, seed)
    events = pack(replace(event, models_down=0, models_up=0) for event in method.schedule.events)
    schedule = replace(method.schedule, events=events)
    return replace(method, schedule=schedule, trainer=LoneTrainer, combine=keep_start)


def keep_start(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Leave the server's model as it is (a combine rule)."""
    return start
