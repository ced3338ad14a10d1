"""FedEM (Marfoq et al. 2021) and FedRC (Guo et al. 2024) against loops by hand, their limits, and what they refuse."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll import (
    Clock,
    Experiment,
    InputError,
    LocalRule,
    Method,
    Population,
    Serial,
    State,
    Trainer,
    fedavg,
    fedem,
    fedrc,
    make_runs,
    mixture,
    mixture_by_class,
    read_model,
)
from atoll.data.population import make_population
from atoll.local.batches import LOSSES
from atoll.local.models import Model
from atoll.local.rule import momentum, sgd
from atoll.local.task import ClientTask
from atoll.methods.parts.mixture import Mixture, MixtureTrainer
from atoll.support.arrays import Floats
from tests.methods.running import SEED, equal, states_of, trainer_of
from tests.problems import Tallying, as_vector, classification, linear_module, network, quadratics

LR, STEPS = 0.05, 4
RULE = LocalRule(sgd, LR, STEPS, batch_size=2, lr_decay=0.9)
LEAST_SQUARES, CLASSES = quadratics(clients=6), classification(clients=6, samples=12)


def softmax_module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3, bias=False)).double()


def serial(method: Method, module: nn.Module, population: Population) -> list[State]:
    return states_of(method, Serial(trainer_of(method, module, population)), module)


def squared(w: Floats, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return each sample's loss, and its gradient by w."""
    residual = x @ w - y
    return residual**2 / 2, residual[:, None] * x


def crossed(w: Floats, x: Floats, y: Any) -> tuple[Floats, Floats]:
    """Return the same of softmax regression; w has the weights of the classes, one after the other."""
    scores = x @ w.reshape(3, 4).T
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    gradients = (p - np.eye(3)[y])[:, :, None] * x[:, None, :]
    return -np.log(p[np.arange(len(y)), y]), gradients.reshape(len(y), -1)


def by_hand(method: Method, population: Population, first: list[Floats], each: Any, by_class: bool = False) -> Any:
    """Yield the K models and all clients' shares after each round, with the expectations written out."""
    draws = Trainer(linear_module(), population, RULE, SEED)
    x, y = population.data.inputs, population.data.targets
    models, count = first, len(first)
    shares = [np.full(count, 1 / count) for _ in range(len(population))]
    of_class = np.ones((count, 3))
    for event in method.schedule.events:
        trained, sums = [], np.zeros((count, 3))
        for k in event.cohort.tolist():
            own = population.samples(k)
            q = np.zeros((count, len(x)))
            for i in own.tolist():
                likelihoods = [np.exp(-each(w, x[[i]], y[[i]])[0][0]) for w in models]
                if by_class:
                    likelihoods = [one / of_class[c, y[i]] for c, one in enumerate(likelihoods)]
                joint = shares[k] * np.array(likelihoods)
                q[:, i] = joint / joint.sum()
                sums[:, int(y[i]) if by_class else 0] += q[:, i]
            shares[k] = q[:, own].mean(axis=1)
            local = list(models)
            for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {})):
                for c in range(count):
                    gradients = q[c, rows][:, None] * each(local[c], x[rows], y[rows])[1]
                    local[c] = local[c] - LR * 0.9**event.round * gradients.mean(axis=0)
            trained.append(local)
        models = [np.average([each[c] for each in trained], axis=0, weights=event.weights) for c in range(count)]
        of_class = sums / sums.sum(axis=1, keepdims=True)
        yield models, list(shares)


def components(model: Model, count: int) -> list[Floats]:
    parts = [{n: t for n, t in model.items() if n.startswith(f"components.{k}.")} for k in range(count)]
    return [as_vector(part) for part in parts]


def compare(states: list[State], expected: Any, count: int) -> None:
    for state, (models, shares) in zip(states, expected, strict=True):
        assert state.server is not None
        np.testing.assert_allclose(components(state.server, count), models, rtol=0, atol=1e-10)
        for client, kept in state.clients.items():
            np.testing.assert_allclose(kept["shares"], shares[client], rtol=0, atol=1e-10)


@pytest.mark.parametrize("count", [2, 3])
def test_fedem_is_the_loop_by_hand(count: int) -> None:
    seeds = iter(range(count))
    module = mixture(lambda: linear_module(seed=next(seeds)), "squared", count)
    method = fedem(LEAST_SQUARES, RULE, 8, module, count, 0.5)
    first = [as_vector(read_model(linear_module(seed=seed))) for seed in range(count)]
    compare(serial(method, module, LEAST_SQUARES), by_hand(method, LEAST_SQUARES, first, squared), count)


@pytest.mark.parametrize("by_class", [False, True])
def test_on_classes_fedem_and_fedrc_are_the_loop_by_hand(by_class: bool) -> None:
    seeds = iter(range(2))
    make = mixture_by_class if by_class else lambda make, _, count: mixture(make, clusters=count)
    module = make(lambda: softmax_module(next(seeds)), 3, 2)
    method = (fedrc if by_class else fedem)(CLASSES, RULE, 8, module, 2, 0.5)
    first = [as_vector(read_model(softmax_module(seed))) for seed in range(2)]
    compare(serial(method, module, CLASSES), by_hand(method, CLASSES, first, crossed, by_class), 2)


def test_a_component_without_samples_of_a_class_takes_those_it_gets() -> None:
    """Its share of the class counts as 1e-8, as in the authors' code; as 0 it would make all losses NaN."""
    seeds = iter(range(2))
    module = mixture_by_class(lambda: softmax_module(next(seeds)), 3, 2)
    module.classes_of.copy_(torch.tensor([[0.0, 0.25, 0.25], [0.2, 0.2, 0.1]]))
    trainer = trainer_of(fedrc(CLASSES, RULE, 1, module, 2, 1.0), module, CLASSES)
    own = CLASSES.samples(0)
    x, y = CLASSES.data.inputs[own], CLASSES.data.targets[own]
    assert (y == 0).any()
    weights = [as_vector(read_model(softmax_module(seed))) for seed in range(2)]
    likelihoods = np.stack([np.exp(-crossed(w, x, y)[0]) for w in weights], axis=1)
    joint = likelihoods / np.array([[1e-8, 0.5, 0.5], [0.4, 0.4, 0.2]]).T[y]
    found = trainer.train(ClientTask(0, 0, 0, 0, 0, read_model(module))).state
    assert found is not None
    np.testing.assert_allclose(found["shares"], (joint / joint.sum(axis=1, keepdims=True)).mean(axis=0), rtol=1e-9)


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("optimizer", [sgd, momentum])
def test_one_model_is_fedavgs_to_the_bit(by_class: bool, optimizer: Any) -> None:
    rule = LocalRule(optimizer, LR, STEPS, 2, proximal=0.1 if by_class else 0.0)
    module = mixture_by_class(network, 3, 1) if by_class else mixture(network, clusters=1)
    ours = serial((fedrc if by_class else fedem)(CLASSES, rule, 6, module, 1, 0.5), module, CLASSES)
    theirs = serial(fedavg(CLASSES, rule, 6, 0.5), network(), CLASSES)
    for one, other in zip(ours, theirs, strict=True):
        assert one.server is not None
        parts = {n.removeprefix("components.0."): t for n, t in one.server.items() if n.startswith("components")}
        assert equal(parts, other.server)
    inputs = torch.from_numpy(CLASSES.data.inputs)
    assert module(inputs).equal(module.components[0](inputs))


@pytest.mark.parametrize("loss", sorted(LOSSES.keys() - {"next-token"}))
def test_a_mixtures_loss_is_that_of_the_mean_of_its_predictions(loss: str) -> None:
    module = Mixture([network(seed=seed) for seed in range(3)], loss)
    module.shares.copy_(torch.tensor([0.7, 0.3, 0.0], dtype=torch.float64))
    inputs = torch.from_numpy(CLASSES.data.inputs)
    each = [component(inputs) for component in module.components]
    as_share: dict[str, Any] = {
        "cross-entropy": lambda o: o.softmax(1),
        "binary-cross-entropy": torch.sigmoid,
        "squared": lambda o: o,
    }
    mean = 0.7 * as_share[loss](each[0]) + 0.3 * as_share[loss](each[1])
    assert as_share[loss](module(inputs)).allclose(mean, rtol=0, atol=1e-12)


WANTED: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 6, "samples": 12},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 4},
    "method": {"name": "fedem", "fraction": 0.5, "clusters": 3},
    "run": {"executor": "serial"},
}


def made(*changes: str) -> Experiment:
    return Experiment(make_runs(WANTED, changes=list(changes))[0])


def test_as_many_models_travel_as_there_are() -> None:
    one = made("method.name=fedavg", "method.clusters=").traffic.bytes_of(made().method.schedule.events[:1])
    assert made().traffic.bytes_of(made().method.schedule.events[:1]) == (3 * one[0], 3 * one[1])
    assert fedem(
        LEAST_SQUARES, RULE, 1, mixture(linear_module, "squared", 3), 3, 0.5, Clock(np.full(6, 2.0), np.full(6, 1.0))
    ).schedule.events[0].seconds == 7  # fmt: skip


def test_the_first_model_starts_as_fedavgs_does() -> None:
    module, other = made().initial.module, made("method.name=fedavg", "method.clusters=").initial.module
    assert isinstance(module, Mixture)
    assert equal(read_model(module.components[0]), read_model(other))
    assert not equal(read_model(module.components[1]), read_model(other))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.clusters=7"], r"method\.clusters = 7: must be at most data\.clients = 6"),
        (["method.clusters=0"], r"method\.clusters"),
        (["run.executor=stacked"], r"run\.executor = 'stacked': method\.name = 'fedem' changes each client's update"),
        (["method.name=fedrc", "data.dataset=regression"], r"'fedrc': needs data with classes.*'squared'"),
        (["model.travels=['components.*']"], r"model\.travels.*'fedem' itself says"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(*changes).check()


def test_a_module_of_ones_own_must_be_made_of_so_many_models() -> None:
    with pytest.raises(InputError, match=r"module: must be made of method\.clusters = 2 models"):
        fedem(LEAST_SQUARES, RULE, 1, linear_module(), 2)
    with pytest.raises(InputError, match=r"module: must know the classes"):
        fedrc(CLASSES, RULE, 1, mixture(network, clusters=2), 2)


def test_no_client_finds_what_another_left_in_a_buffer_that_is_no_part_of_the_model() -> None:
    def made() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), Tallying(), nn.Linear(5, 3)).double()

    module = mixture(made, clusters=2)
    trainer = trainer_of(fedem(CLASSES, RULE, 1, module, 2), module, CLASSES)
    task = ClientTask(0, 0, 0, 0, 1, read_model(module))
    first, _, again = (trainer.train(each) for each in (task, replace(task, client=2), task))
    assert equal(first.model, again.model)


def test_a_sample_that_a_client_holds_twice_counts_twice_in_its_shares() -> None:
    data, seeds = quadratics().data, count()
    module = mixture(lambda: linear_module(seed=next(seeds)), "squared", 3)
    models = [as_vector(read_model(each)) for each in module.components]
    losses = np.array([[float(data.inputs[k] @ w - data.targets[k]) ** 2 / 2 for w in models] for k in (0, 1)])
    found = np.exp(-losses) / np.exp(-losses).sum(axis=1, keepdims=True)
    trainer = MixtureTrainer(module, make_population(data, [np.array([0, 0, 1])]), LocalRule(sgd, 0.1, 1, 2), 0)
    update = trainer.train(ClientTask(0, 0, 0, 0, 0, read_model(module)))
    np.testing.assert_allclose(update.model["shares"].numpy(), (2 * found[0] + found[1]) / 3)
