"""Vertical federated learning, where parties hold different features of the same samples (FedBCD).

Liu et al. 2022, "FedBCD: a communication-efficient collaborative learning framework for distributed features". A
party is a client with its own block of the input and of the model; the model's output is the sum of the parties'
outputs. Party 0 is the label party: the others send it their outputs, and it sends each the sum of all other
outputs. The labels of a batch are assumed to be known to all parties.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from atoll.aggregation.mean import Weighted
from atoll.data.population import Population
from atoll.engine.engine import Method
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import refuse_epochs
from atoll.schedules.events import Clock, Event, Schedule, make_event
from atoll.support.arrays import Ids
from atoll.support.errors import InputError

Mode = Literal["parallel", "sequential"]

OUTPUT_BYTES = 4  # the built-in models compute in float32


@checked
def fedbcd(
    population: Population, rule: LocalRule, rounds: int, mode: Mode = "parallel", clock: Clock | None = None
) -> Method:
    """FedBCD: parties with different features of the same samples train the sum of their networks.

    Liu et al. 2022. A round exchanges the parties' outputs for one batch S; then each party k takes Q = `rule.steps`
    steps ``theta_k <- theta_k - eta * grad_k f(theta_k, the others' outputs; S)`` on its own block, simultaneously
    (`parallel`) or in turn, using earlier parties' new outputs (`sequential`). Parties keep their optimiser state.
    With Q = 1, parallel is SGD on the whole model.

    `population` contains the parties (`share_samples`), the model is a `Parties`, the trainer a `PartyTrainer`.

    Args:
        population: the parties.
        rule: the parties' local training rule.
        rounds: number of output exchanges.
        mode: whether parties train simultaneously or in turn.
        clock: parties' training and upload times; None: every event takes one second.
    """
    if not all(np.array_equal(population.samples(k), population.samples(0)) for k in range(len(population))):
        raise InputError("method.name = 'fedbcd': needs parties that hold the same samples, as share_samples gives")
    if rule.resample_parts:
        raise InputError(
            "method.resample = true: cannot be used with method.name = 'fedbcd', whose parties share all samples"
        )
    refuse_epochs(rule, "method.name = 'fedbcd', whose parties take local.steps on the same batch")
    from atoll.methods.parts.party_trainer import PartyTrainer  # late: reading settings needs no PyTorch

    schedule = exchanging(len(population), rounds, mode, output_bytes(population, rule), clock)
    return Method(schedule, replace(rule, carry_moments=True), combine=join_blocks, trainer=PartyTrainer)


def join_blocks(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Replace the parties' initial blocks with the trained ones (a combine rule)."""
    joined = dict(start)
    for _, block in models:
        joined |= block
    return joined


def exchanging(
    parties: int, rounds: int, mode: Mode = "parallel", message_bytes: int = 0, clock: Clock | None = None
) -> Schedule:
    """Return a schedule that exchanges one batch's outputs per round before the parties train (FedBCD).

    `parallel`: one event per round, in which all parties train. `sequential`: one event per party, in ascending
    order, each using earlier parties' new outputs. Without a clock every event takes one second.

    Messages are outputs of `message_bytes` bytes. The other K - 1 parties send theirs to the label party, which sends
    each the sum of all others. In sequence, each party but the first and the last also sends its new outputs after
    training.
    """
    turns = _turns(parties, mode)
    events: list[Event] = []
    now = 0.0
    for index in range(rounds * len(turns)):
        cohort, up, down = turns[index % len(turns)]
        began, now = now, now + (clock.event_seconds(cohort, now) if clock else 1.0)
        weights, number = np.ones(len(cohort)), index // len(turns)
        events.append(make_event(index, cohort, weights, began, now, round=number, models_down=down, models_up=up))
    return Schedule(tuple(events), 1, rounds, message_bytes=message_bytes)


def output_bytes(population: Population, rule: LocalRule) -> int:
    """Return the size of one party's outputs for one batch, in bytes."""
    batch = int(population.sizes[0]) if rule.batch_size == "full" else rule.batch_size
    return batch * population.data.outputs * OUTPUT_BYTES


def _turns(parties: int, mode: Mode) -> list[tuple[Ids, int, int]]:
    """Return each event's cohort in a round, with its numbers of messages up and down."""
    last = parties - 1
    if mode == "parallel":
        return [(np.arange(parties), last, last)]
    middle = [(np.array([k]), 1, 1) for k in range(1, last)]
    return [(np.array([0]), last, 0), *middle, *([(np.array([last]), 0, 1)] if last else [])]
