"""Atoll's executors and the plain loop, each a process that trains on request: ``contend.py``."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from atoll.aggregation.reductions import update_norm
from atoll.data.dataset import Dataset
from atoll.data.population import Population, make_population
from atoll.engine.cohorts import Executor
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.engine.train_events import train_events
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.serial import Serial
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.executors.weighted import Weighted, why_not_weighted
from atoll.experiment.executor_choice import count_cores
from atoll.local.models import MODELS, Model
from atoll.local.rule import LocalRule, sgd
from atoll.local.trainer import Trainer
from atoll.local.weights import count_bytes, read_model
from atoll.schedules.events import Event, Schedule
from atoll.support.process import keep_freed_memory
from bench.flops import PRODUCTS, SQUARE
from bench.work import Case, WorkRate, make_pool, samples_of


def _make_cores(trainer: Trainer) -> Cores:
    """Return workers on all cores, as in a run."""
    by_cohort = None if why_not_weighted(trainer.rule, trainer.module) else Weighted(trainer)
    return Cores(trainer, count_cores(), count_bytes(read_model(trainer.module)), by_cohort)


EXECUTORS: dict[str, Callable[[Trainer], Executor]] = {
    "serial": Serial,
    "cores": _make_cores,
    "stacked": Stacked,
    "weighted": Weighted,
}
PLAIN, MATRIX_PRODUCT = "plain loop", "matrix product"
ROUNDED = "cores, bfloat16"


class Round(Protocol):
    """Trains one round from a model."""

    def __call__(self, start: Model) -> Model:
        """Return the mean of the models that the last cohort returns."""
        ...


def contenders_for(case: Case) -> list[str]:
    """Return the contenders that fit a case; the weighted pass needs a single step."""
    return [PLAIN, *(name for name in EXECUTORS if name != "weighted" or case.steps == 1)]


def serve(name: str, case: Case) -> None:
    """Train or multiply one round per request, until there are no more."""
    if name == MATRIX_PRODUCT:
        _serve_products()
        return
    module = make_module(case)
    first = model = read_model(module)
    train = make_round(name, case, module)
    pace = WorkRate(sum(tensor.numel() for tensor in first.values()), lambda: update_norm(model, first))
    while pace.next_round():
        model = train(model)


def make_module(case: Case) -> nn.Module:
    """Return the model of a case, always with the same weights."""
    torch.manual_seed(0)
    return MODELS[case.model](case.shape, case.classes)


def make_round(name: str, case: Case, module: nn.Module) -> Round:
    """Return a function that trains a round: by the plain loop, or by an executor."""
    if name == PLAIN:
        return make_plain_round(case, module)
    keep_freed_memory()  # as a run does
    if name == ROUNDED:
        return make_executor_round(case, _make_cores(make_trainer(case, module, precision="bfloat16")))
    return make_executor_round(case, EXECUTORS[name](make_trainer(case, module)))


def make_trainer(case: Case, module: nn.Module, **named: Any) -> Trainer:
    """Return the trainer of a case; `named` holds further arguments of `Trainer`, such as a device."""
    rule = LocalRule(sgd, case.lr, case.steps, case.batch_size)
    return Trainer(module, make_clients(case), rule, seed=0, **named)


def make_clients(case: Case) -> Population:
    """Return the clients of a case, with samples in bytes as in image data sets."""
    images, labels = make_pool(case)
    data = Dataset("random", images, labels, images[:1], labels[:1], case.classes, scale=1 / 255)
    rows = np.arange(len(images))
    return make_population(data, [rows[samples_of(case, client)] for cohort in case.members for client in cohort])


def make_executor_round(case: Case, executor: Executor) -> Round:
    """Return a round by an executor, as a run trains an event; its cohorts are intra-cluster rounds."""
    clusters = range(case.clusters)
    clients = np.concatenate([list(own) for own in case.members])
    fields: dict[str, Any] = {
        "seconds": 0.0,
        "active": tuple(clusters),
        "began": (0.0,) * case.clusters,
        "cohort": clients,
        "clusters": np.repeat(clusters, case.clients),
        "weights": np.ones(len(clients)),
        "intra_rounds": case.cohorts,
    }
    numbers = count()  # a new event every round, so that no two draw the same batches
    method = Method(Schedule((), case.clusters, rounds=1, has_server=False), LocalRule(sgd, case.lr))

    def train(start: Model) -> Model:
        number = next(numbers)
        event = Event(index=number, round=number, **fields)
        starts = (start,) * case.clusters
        (trained,) = train_events(method, executor, State(0, None, starts, starts), [event])
        return mean_of([trained.models[cluster] for cluster in clusters])

    return train


def make_plain_round(case: Case, module: nn.Module) -> Round:
    """Return a round as a user would write it in PyTorch: one client at a time, with PyTorch's default threads."""
    train_client = make_plain_client(case, module)

    def train(start: Model) -> Model:
        return mean_of([train_cluster(clients, start) for clients in case.members])

    def train_cluster(clients: range, model: Model) -> Model:
        for _ in range(case.cohorts):
            model = mean_of([train_client(client, model) for client in clients])
        return model

    return train


def make_plain_client(case: Case, module: nn.Module) -> Callable[[int, Model], Model]:
    """Return a function that trains a client by its number, as a user would write it."""
    images, labels = make_pool(case)
    inputs, targets = torch.from_numpy(images).float() / 255, torch.from_numpy(labels)

    def train_client(client: int, start: Model) -> Model:
        own = samples_of(case, client)
        x, y = inputs[own], targets[own]
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=case.lr)
        for _ in range(case.steps):
            batch = torch.randint(len(x), (case.batch_size,))
            loss = nn.functional.cross_entropy(module(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}

    return train_client


def mean_of(models: Sequence[Model]) -> Model:
    """Return the mean of models, as a user would write it."""
    if len(models) == 1:
        return models[0]
    return {name: torch.stack([model[name] for model in models]).mean(dim=0) for name in models[0]}


def _serve_products() -> None:
    """Multiply matrices on all cores, as fast as PyTorch does."""
    one, other = torch.rand(SQUARE, SQUARE), torch.rand(SQUARE, SQUARE)
    product = torch.empty(SQUARE, SQUARE)
    pace = WorkRate(0, lambda: 0.0)
    while pace.next_round():
        for _ in range(PRODUCTS):
            torch.mm(one, other, out=product)
