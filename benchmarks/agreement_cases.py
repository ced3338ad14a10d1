"""The cases of `agreement.py`: clients, starts and batches, Atoll's run of a method, and the file a library replays."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from atoll import (
    ClientTask,
    Clock,
    Dataset,
    LocalRule,
    Method,
    Population,
    Serial,
    State,
    Trainer,
    init,
    make_population,
    read_model,
    train,
)
from atoll.local.rule import sgd
from atoll.support.arrays import Floats

SEED, WIDTH, HIDDEN, CLASSES, BLOCK, EPOCHS = 7, 8, 6, 3, 12, 2.0
RULE = LocalRule(sgd, 0.1, 3, batch_size=4)
CLOCK = Clock(np.array([1.0, 2.5, 0.7, 4.0, 1.3, 3.1, 0.9, 2.2, 6.0, 1.7]), np.full(10, 0.5))


def clients_with(blocks: Sequence[int]) -> Population:
    """Return clients with so many blocks of samples each, which every other client labels by another rule."""
    rng = np.random.default_rng(SEED)
    owner = np.repeat(np.arange(len(blocks)), BLOCK * np.asarray(blocks))
    inputs = rng.normal(size=(len(owner), WIDTH))
    scores = inputs @ rng.normal(size=(2, WIDTH, CLASSES))
    targets = scores[owner % 2, np.arange(len(owner))].argmax(axis=1)
    data = Dataset("planted", inputs, targets, inputs[:5], targets[:5], CLASSES)
    return make_population(data, [np.flatnonzero(owner == k) for k in range(len(blocks))])


UNEVEN_BLOCKS = (1, 2, 3, 1, 2, 3, 1, 2, 3, 1)
EVEN, UNEVEN, MANY = clients_with((1,) * 10), clients_with(UNEVEN_BLOCKS), clients_with((1,) * 16)


def starts_of(method: Method) -> list[nn.Module]:
    """Return as many different networks as the method starts with."""
    torch.manual_seed(SEED)
    return [
        nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()
        for _ in range(method.starts)
    ]


def vector_of(model: dict[str, Any]) -> Floats:
    return np.concatenate([tensor.numpy().ravel() for name, tensor in model.items() if "@" not in name])


def run_atoll(method: Method, population: Population) -> Floats:
    """Return the parameters after each event, [events, parameters].

    Of all clusters where there is no server; of all clients where clusters are learned, since these have no order.
    """

    def parameters(state: State) -> Floats:
        if state.server:
            return vector_of(state.server)
        models = state.starts if state.labels is None else [state.starts[k] for k in state.labels]
        return np.concatenate([vector_of(one) for one in models])

    modules = starts_of(method)
    make: Any = method.trainer or Trainer
    with closing(Serial(make(modules[0], population, method.rule, SEED))) as executor:
        state = init(method, *map(read_model, modules))
        return np.array([parameters(step.state) for step in train(method, executor, state)])


def write_case(
    path: Path, method: Method, population: Population, settings: dict[str, Any], copies: Sequence[int] | None = None
) -> None:
    """Write what a library is to replay: starts, data, who takes part when, and the batches of every step.

    Client k is there `copies[k]` times, for libraries in which all clients count alike; None: once.
    """
    copies = copies or (1,) * len(population)
    first = np.concatenate([[0], np.cumsum(copies)]).tolist()
    events = []
    for event in method.schedule.events:
        late = dict(zip(event.active, event.staleness, strict=True))
        clusters = event.cohort * 0 if event.clusters is None else event.clusters
        events.append(
            [
                {
                    "client": first[client] + copy,
                    "version": event.index - late[cluster],
                    "samples": int(population.sizes[client]),
                    "rows": draw_rows(method, population, event.index, event.round, client),
                }
                for client, cluster in zip(event.cohort.tolist(), clusters.tolist(), strict=True)
                for copy in range(copies[client])
            ]
        )
    settings = {"lr": RULE.lr, "steps": RULE.steps, **settings}
    told = json.dumps({"settings": settings, "clients": sum(copies), "events": events})
    starts = [vector_of(read_model(module)) for module in starts_of(method)]
    start = np.array(starts) if len(starts) > 1 else starts[0]
    np.savez(path, start=start, told=told, inputs=population.data.inputs, targets=population.data.targets)


def draw_rows(method: Method, population: Population, event: int, round_: int, client: int) -> list[list[int]]:
    """Return the samples of each local step's batch, as Atoll draws them."""
    drawing = Trainer(starts_of(method)[0], population, method.rule, SEED)
    rows: list[list[int]] = drawing.draw_rows(ClientTask(event, round_, 0, 0, client, {})).tolist()
    return rows
