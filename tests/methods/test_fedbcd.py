"""FedBCD against a slow twin written by hand in NumPy, and against SGD on the whole model; messages counted by hand.

The twin shares with the engine only the samples and the random draws (seeds.generator); the parties' networks, their
gradients, optimisers, exchanges and turns are written out.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll import (
    Experiment,
    InputError,
    LocalRule,
    Method,
    Serial,
    Trainer,
    centralized,
    fedbcd,
    init,
    read_model,
    run_events,
    train,
)
from atoll.local.models import Model, dense, linear
from atoll.local.rule import adam, momentum, sgd
from atoll.methods.papers.fedbcd import Mode, exchanging
from atoll.methods.parts.feature_blocks import split_shape
from atoll.methods.parts.parties import share_samples, split_model
from atoll.methods.parts.party_trainer import Parties, PartyTrainer
from atoll.settings.validation import validate
from atoll.support.arrays import Floats
from atoll.support.seeds import generator
from tests.made_runs import timeless
from tests.problems import as_vector, classification

HIDDEN, CLASSES, BATCH = 3, 3, 5
BLOCKS = {1: [4], 2: [2, 2], 3: [2, 1, 1]}  # how four features are split
Weights = dict[str, Floats]  # U [hidden, features], a, V [classes, hidden], b


def party_module(parties: int) -> Parties:
    torch.manual_seed(1)
    return Parties((4,), [dense(block, (HIDDEN,), CLASSES) for block in split_shape((4,), parties)]).double()


def by_party(model: Model, parties: int) -> list[Weights]:
    names = {"U": "1.weight", "a": "1.bias", "V": "3.weight", "b": "3.bias"}
    return [
        {short: model[f"parties.{k}.{name}"].numpy().copy() for short, name in names.items()} for k in range(parties)
    ]


def output(w: Weights, x: Floats) -> Floats:
    return np.maximum(x @ w["U"].T + w["a"], 0) @ w["V"].T + w["b"]


def gradient(w: Weights, x: Floats, y: Any, others: Floats) -> Weights:
    """Cross-entropy of softmax(own output + others), derived by the party's own weights."""
    before = x @ w["U"].T + w["a"]
    h = np.maximum(before, 0)
    logits = h @ w["V"].T + w["b"] + others
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = (p @ w["V"]) * (before > 0)
    return {"U": back.T @ x, "a": back.sum(axis=0), "V": p.T @ h, "b": p.sum(axis=0)}


def twin(
    start: list[Weights], data: Any, samples: Any, rule: LocalRule, beta: float, mode: Mode, rounds: int, seed: int
) -> list[Weights]:
    """FedBCD with the heavy ball (beta = 0: SGD), whose u each party keeps over the rounds."""
    theta = start
    parties = len(theta)
    cuts = np.cumsum(BLOCKS[parties])[:-1]
    u = [{name: np.zeros_like(value) for name, value in w.items()} for w in theta]
    for j in range(rounds):
        rows = samples
        if rule.batch_size != "full":
            rows = samples[generator(seed, "batches", j, 0, 0).integers(len(samples), size=rule.batch_size)]
        x, y = np.split(data.inputs[rows], cuts, axis=1), data.targets[rows]
        outputs = [output(theta[k], x[k]) for k in range(parties)]
        for k in range(parties):
            others = np.zeros((len(y), CLASSES))
            for i in range(parties):
                others += outputs[i] if i != k else 0.0
            w = {name: value.copy() for name, value in theta[k].items()}
            for _ in range(rule.steps):
                g = gradient(w, x[k], y, others)
                for name in w:
                    pull = rule.proximal * (w[name] - theta[k][name])
                    u[k][name] = beta * u[k][name] + g[name] + pull
                    w[name] = w[name] - rule.lr * rule.lr_decay**j * u[k][name]
            theta[k] = w
            if mode == "sequential":
                outputs[k] = output(w, x[k])
    return theta


def train_to_end(method: Method, module: nn.Module, population: Any, seed: int) -> Model:
    for step in train(
        method, Serial(PartyTrainer(module, population, method.rule, seed)), init(method, read_model(module))
    ):
        state = step.state
    assert state.server is not None
    return state.server


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize(
    ("steps", "batch_size", "beta", "proximal", "decay"),
    [(1, BATCH, 0.0, 0.0, 1.0), (4, BATCH, 0.0, 0.0, 1.0), (4, BATCH, 0.5, 0.3, 0.8), (3, "full", 0.0, 0.0, 1.0)],
)
def test_fedbcd_equals_its_twin(
    mode: Mode, parties: int, steps: int, batch_size: Any, beta: float, proximal: float, decay: float
) -> None:
    population = share_samples(classification(), parties)
    make = partial(momentum, momentum=beta) if beta else sgd
    rule = LocalRule(make, 0.3, steps, batch_size, proximal, decay)
    module = party_module(parties)
    start = read_model(module)
    expected = twin(
        by_party(start, parties), population.data, population.samples(0), rule, beta, mode, rounds=6, seed=5
    )
    found = train_to_end(fedbcd(population, rule, 6, mode), module, population, seed=5)
    assert np.abs(as_vector(found) - as_vector(start)).max() > 1e-2  # it moved
    for k, weights in enumerate(by_party(found, parties)):
        for name, value in weights.items():
            np.testing.assert_allclose(value, expected[k][name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [sgd, partial(momentum, momentum=0.5), adam], ids=["sgd", "momentum", "adam"])
def test_one_parallel_step_a_round_is_sgd_on_the_whole_model(make: Any) -> None:
    population = classification()
    rule = LocalRule(make, 0.05, 1, BATCH)
    module = party_module(3)
    start = read_model(module)
    found = train_to_end(fedbcd(share_samples(population, 3), rule, 20), module, share_samples(population, 3), seed=2)
    module.load_state_dict(start)
    joint = centralized(population.pooled(), rule, 20, seed=2)
    trainer = Trainer(module, population.pooled(), joint.rule, seed=2)
    *_, last = train(joint, Serial(trainer), init(joint, start))
    assert last.state.server is not None
    np.testing.assert_allclose(as_vector(found), as_vector(last.state.server), rtol=0, atol=1e-12)


def test_more_steps_and_turns_make_a_difference() -> None:
    """That the twins agree must not be because the modes do."""
    population = share_samples(classification(), 2)
    found = []
    for steps, mode in [(1, "parallel"), (1, "sequential"), (3, "parallel"), (3, "sequential")]:
        method = fedbcd(population, LocalRule(sgd, 0.3, steps, BATCH), 4, mode)  # type: ignore[arg-type]
        found.append(as_vector(train_to_end(method, party_module(2), population, seed=5)))
    for one in range(4):
        for other in range(one):
            assert np.abs(found[one] - found[other]).max() > 1e-3


@pytest.mark.parametrize("shape", [(7,), (1, 3, 5), (3, 4, 4)])
@pytest.mark.parametrize("parties", [1, 2, 3])
def test_linear_parties_are_the_linear_model(shape: tuple[int, ...], parties: int) -> None:
    """Each party has its own columns of the weights: an image's pixels in reading order, all channels of them."""
    whole, split = linear(shape, 4), split_model("linear")(shape, 4, parties)
    (weight, bias), channels = whole.parameters(), shape[0] if len(shape) == 3 else 1
    columns = np.array_split(np.arange(weight.shape[1] // channels), parties)
    with torch.no_grad():
        for k, own in enumerate(columns):
            block = weight.reshape(4, channels, -1)[:, :, own].reshape(4, -1)
            split.get_parameter(f"parties.{k}.1.weight").copy_(block)
        split.get_parameter("parties.0.1.bias").copy_(bias)
    assert sum(p.numel() for p in split.parameters()) == sum(p.numel() for p in whole.parameters())
    inputs = torch.randn(6, *shape)
    torch.testing.assert_close(split(inputs), whole(inputs))


def test_a_split_mlp_has_the_whole_width() -> None:
    split = split_model("mlp")((1, 28, 28), 10, 3)
    assert [tuple(split.get_parameter(f"parties.{k}.1.weight").shape) for k in range(3)] == [
        (67, 262),
        (67, 261),
        (66, 261),
    ]


# Messages of outputs, up and down in a round, by hand.
MESSAGES = {
    (1, "parallel"): (0, 0),
    (1, "sequential"): (0, 0),
    (2, "parallel"): (1, 1),
    (2, "sequential"): (1, 1),
    (4, "parallel"): (3, 3),
    (4, "sequential"): (3 + 2, 3),
}


@pytest.mark.parametrize(("parties", "mode"), MESSAGES)
def test_messages_are_counted(parties: int, mode: Mode) -> None:
    schedule = exchanging(parties, 5, mode)
    up, down = sum(e.models_up for e in schedule.events), sum(e.models_down for e in schedule.events)
    assert (up, down) == tuple(5 * count for count in MESSAGES[parties, mode])
    assert len(schedule) == 5 * (1 if mode == "parallel" else parties)
    assert schedule.rounds_done(len(schedule)) == 5
    assert schedule.max_updates_per_client_round() == 1


@pytest.mark.parametrize(("batch_size", "samples"), [(10, 10), ("full", 60)])
def test_bytes_are_those_of_outputs(batch_size: Any, samples: int) -> None:
    table: dict[str, Any] = {"data": {"clients": 6, "samples": 10}, "local": {"batch_size": batch_size}}
    experiment = Experiment(validate(table | {"method": {"name": "fedbcd", "parties": 3}}))
    assert experiment.traffic.message_bytes == samples * 10 * 4  # a float32 a class of digits
    hidden = 22 * 67 + 21 * 67 + 21 * 66 + 200
    assert experiment.traffic.model_bytes == 4 * (hidden + 200 * 10 + 10)


def test_what_cannot_be_split_is_refused() -> None:
    population = classification()  # four features
    with pytest.raises(InputError, match=r"method.parties = 5: must be at least 1 and at most 4"):
        share_samples(population, 5)
    with pytest.raises(InputError, match=r"method.parties = 0"):
        share_samples(population, 0)
    with pytest.raises(InputError, match=r"model.name = 'cnn': .*'linear', 'mlp', 'lr'"):
        split_model("cnn")
    rule = LocalRule(sgd, 0.1)
    with pytest.raises(InputError, match=r"hold the same samples"):
        fedbcd(population, rule, 1)
    with pytest.raises(InputError, match=r"method.mode = 'both'"):
        fedbcd(share_samples(population, 2), rule, 1, "both")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"rounds = 0"):
        fedbcd(share_samples(population, 2), rule, 0)
    with pytest.raises(InputError, match=r"method.resample"):
        fedbcd(share_samples(population, 2), LocalRule(sgd, 0.1, resample_parts=2), 1)
    with pytest.raises(InputError, match=r"Parties of 2 parties"):
        PartyTrainer(party_module(3), share_samples(population, 2), rule, 0)


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_a_resumed_run_has_the_same_rows(tmp_path: Path, mode: str) -> None:
    """The parties' momentum is in the checkpoint, and a round may be cut between two parties' turns."""
    table: dict[str, Any] = {
        "rounds": 3,
        "data": {"clients": 4, "samples": 20, "partition": "rotated"},
        "local": {"optimizer": "momentum", "steps": 2},
        "method": {"name": "fedbcd", "parties": 3, "mode": mode},
    }
    experiment = Experiment(validate(table))
    experiment.check()
    for _ in run_events(experiment, tmp_path / "whole"):
        pass
    cut = run_events(experiment, tmp_path / "cut")
    for progress in cut:
        if progress.events_done == 2:
            cut.close()
    for _ in run_events(experiment, tmp_path / "cut", resume=True):
        pass

    def rows(name: str) -> list[Any]:
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [timeless(line) for line in lines]

    assert len(rows("whole")) == 4
    assert rows("cut") == rows("whole")
    assert rows("whole")[-1]["bytes_up"] == 3 * (2 if mode == "parallel" else 3) * 30 * 10 * 4
