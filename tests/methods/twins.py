"""What twins by hand share: a population of quadratics, gradients and batches in NumPy, and runs of a method on it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from atoll import Clock, Event, Executor, LocalRule, Method, Serial, State, Trainer, read_model
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.support.arrays import Floats
from tests.methods.running import SEED, states_of, trainer_of
from tests.problems import as_vector, linear_module, quadratics

POPULATION, LR, STEPS = quadratics(clients=8), 0.05, 4
RULE = LocalRule(sgd, LR, STEPS, batch_size=2, lr_decay=0.9)
CLOCK = Clock(np.array([1.0, 2.5, 0.7, 4.0, 1.3, 3.1, 0.9, 2.2]), np.full(8, 0.5))
ALIKE = Clock(np.ones(8), np.zeros(8))
START = as_vector(read_model(linear_module()))


def make(method: Method) -> Trainer:
    return trainer_of(method, linear_module(), POPULATION)


def run(method: Method, executor: Executor | None = None) -> list[State]:
    """Return the state after each event."""
    return states_of(method, executor or Serial(make(method)), linear_module())


def server(state: State) -> Floats:
    assert state.server is not None
    return as_vector(state.server)


def count_alike(method: Method) -> Method:
    """Return the method in which all clients of a cohort weigh the same."""
    events = tuple(replace(event, weights=np.ones(len(event.cohort))) for event in method.schedule.events)
    return replace(method, schedule=replace(method.schedule, events=events))


def gradients(event: Event, client: int, steps: int = STEPS) -> Iterator[Any]:
    """Yield a function of w for each local step: the gradient on the batch that the client draws for it."""
    draws = Trainer(linear_module(), POPULATION, replace(RULE, steps=steps), SEED)
    for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, client, {})):
        x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
        yield lambda w, x=x, y=y: x.T @ (x @ w - y) / len(y)


def descend(event: Event, client: int, w: Floats, steps: int = STEPS) -> Floats:
    """Return what plain local steps make of w."""
    for gradient in gradients(event, client, steps):
        w = w - LR * 0.9**event.round * gradient(w)
    return w


def sizes(event: Event) -> Floats:
    return POPULATION.sizes[event.cohort].astype(float)
