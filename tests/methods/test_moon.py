"""MOON (Li, He and Song 2021) against a loop by hand, with the contrastive gradient written out, and its limit."""

from typing import Any, cast

import numpy as np
import pytest
from torch import Tensor, nn

from atoll import Clock, InputError, LocalRule, Method, Serial, State, Trainer, fedavg, moon, read_model
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.methods.parts.features import prototypes
from atoll.support.arrays import Floats
from tests.methods.running import SEED, equal, states_of, trainer_of
from tests.problems import Tallying, classification, network

POPULATION, LR = classification(clients=6), 0.3
RULE = LocalRule(sgd, LR, 4, batch_size=3, lr_decay=0.9)
Weights = dict[str, Any]  # "0.weight" [5, 4], "0.bias", "2.weight" [3, 5], "2.bias"


def serial(method: Method) -> list[State]:
    return states_of(method, Serial(trainer_of(method, network(), POPULATION)), network())


def features(w: Weights, x: Floats) -> Floats:
    return np.asarray(np.tanh(x @ w["0.weight"].T + w["0.bias"]))


def cosine(z: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Return each row's cosine with the other's, and its gradient by z."""
    lengths, others = (np.linalg.norm(each, axis=1, keepdims=True) for each in (z, other))
    value = (z * other).sum(axis=1, keepdims=True) / (lengths * others)
    return value, other / (lengths * others) - value * z / lengths**2


def gradient(w: Weights, received: Weights, last: Weights, rows: Any, mu: float, tau: float) -> Weights:
    x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
    z = features(w, x)
    scores = z @ w["2.weight"].T + w["2.bias"]
    by_score = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True) - np.eye(3)[y]
    (near, by_near), (far, by_far) = (cosine(z, features(other, x)) for other in (received, last))
    share = 1 / (1 + np.exp((far - near) / tau))
    by_z = by_score @ w["2.weight"] + mu * (1 - share) / tau * (by_far - by_near)
    inner = by_z * (1 - z**2)
    found = {"0.weight": inner.T @ x, "0.bias": inner.sum(0), "2.weight": by_score.T @ z, "2.bias": by_score.sum(0)}
    return {name: each / len(rows) for name, each in found.items()}


def test_it_is_the_loop_by_hand() -> None:
    mu, tau = 1.5, 0.5
    method = moon(POPULATION, RULE, 8, mu, tau, 0.5)
    draws = Trainer(network(), POPULATION, RULE, SEED)
    w: Weights = {name: each.numpy() for name, each in read_model(network()).items()}
    kept: dict[int, Weights] = {}
    for event, state in zip(method.schedule.events, serial(method), strict=True):
        trained = []
        for k in event.cohort.tolist():
            local, last = w, kept.get(k, w)
            for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {})):
                step = gradient(local, w, last, rows, mu, tau)
                local = {name: each - LR * 0.9**event.round * step[name] for name, each in local.items()}
            trained.append(local)
            kept[k] = local
        w = {name: np.average([each[name] for each in trained], axis=0, weights=event.weights) for name in w}
        assert state.server is not None
        for name, each in w.items():
            np.testing.assert_allclose(state.server[name], each, rtol=0, atol=1e-10)


def test_without_the_contrast_it_is_fedavg_to_the_bit() -> None:
    ours, theirs = serial(moon(POPULATION, RULE, 6, 0.0, fraction=0.5)), serial(fedavg(POPULATION, RULE, 6, 0.5))
    assert all(equal(one.server, other.server) for one, other in zip(ours, theirs, strict=True))


def test_two_more_forward_passes_take_two_thirds_more_time() -> None:
    clock = Clock(np.full(len(POPULATION), 3.0), np.ones(len(POPULATION)))
    assert moon(POPULATION, RULE, 1, clock=clock).schedule.events[0].seconds == 3 * 5 / 3 + 1


def test_a_model_of_one_layer_is_refused() -> None:
    """Its features would be the inputs, whose contrast has no gradient."""

    def last(mu: float) -> State:
        method, one = moon(POPULATION, RULE, 2, mu), nn.Sequential(nn.Linear(4, 3)).double()
        return states_of(method, Serial(trainer_of(method, one, POPULATION)), one)[-1]

    with pytest.raises(InputError, match="'moon': the model trains nothing before its last layer, so features stay"):
        last(0.1)
    assert last(0.0).events_done == 2


class Spare(nn.Sequential):
    """A network whose last layer is never called."""

    def forward(self, inputs: Tensor) -> Tensor:
        first, second, third, _ = self
        return cast(Tensor, third(input=second(first(inputs))))


def test_features_are_those_of_the_last_layer_that_is_called() -> None:
    method = moon(POPULATION, RULE, 3, 1.5, fraction=0.5)
    spare = Spare(*network().children(), nn.Linear(2, 2).double())
    with_spare = states_of(method, Serial(trainer_of(method, spare, POPULATION)), spare)
    for one, other in zip(serial(method), with_spare, strict=True):
        assert one.server is not None
        assert other.server is not None
        assert all(other.server[name].equal(each) for name, each in one.server.items())


class Functional(nn.Module):
    """A model that calls none of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs, self.layer.weight)


def test_a_model_without_features_is_refused() -> None:
    method = moon(POPULATION, RULE, 1)
    with pytest.raises(InputError, match="calls no layer that has parameters"):
        states_of(method, Serial(trainer_of(method, Functional(), POPULATION)), Functional())
    with pytest.raises(InputError, match="calls no layer that has parameters"):
        prototypes(POPULATION, Functional(), None)


class Counting(Tallying):
    """Counts batches also where it does not train."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += 1
        return super().forward(inputs)


def test_no_client_finds_what_another_left_in_a_copy_of_the_model() -> None:
    module = nn.Sequential(nn.Linear(4, 5), Counting(), nn.Tanh(), nn.Linear(5, 3)).double()
    trainer = trainer_of(moon(POPULATION, RULE, 1), module, POPULATION)
    last = {name: each + 0.1 for name, each in read_model(module).items()}
    task = ClientTask(0, 0, 0, 0, 1, read_model(module), state=last)
    first, again = trainer.train(task), trainer.train(task)
    assert equal(first.model, again.model)


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"method\.mu"):
        moon(POPULATION, RULE, 2, mu=-1.0)
    with pytest.raises(InputError, match=r"method\.temperature"):
        moon(POPULATION, RULE, 2, temperature=0.0)
