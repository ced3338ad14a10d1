"""Clients split over several devices; without GPUs the processor stands in for two and three."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll import Experiment, InputError, LocalRule, RunError, Stacked, Trainer, make_runs, read_model, run_events
from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort
from atoll.executors.stacked import stacked_executor
from atoll.executors.stacked.training import TrainedStack, train_stack
from atoll.local.models import Model
from atoll.local.rule import momentum, sgd
from atoll.local.travel import Shared
from atoll.runs.result import read_result
from tests.problems import classification, network

POPULATION = classification(clients=10, samples=12)
SGD = LocalRule(sgd, lr=0.1, steps=3, batch_size=4)
TABLE: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 6, "samples": 12},
    "model": {"name": "linear"},
    "local": {"lr": 0.2, "steps": 2, "batch_size": 4},
    "method": {"name": "ifca", "clusters": 2},
    "run": {"executor": "stacked", "device": "cpu,cpu", "checkpoint_every": 1},
}


def trained(rule: LocalRule, others: list[str]) -> Model:
    """Return the model after two cohorts, whose moments travel if the rule says so."""
    executor = Stacked(Trainer(network(seed=1), POPULATION, rule, seed=3), others=others)
    model = read_model(network(seed=1))
    for event in range(2):
        cohort = Cohort(event, event, 0, 0, np.arange(10), np.arange(1.0, 11.0), 55.0, model)
        (update,) = executor.train([cohort], average_models)
        model = update.model
    executor.close()
    return model


@pytest.mark.parametrize("others", [["cpu"], ["cpu", "cpu"]])
@pytest.mark.parametrize("rule", [SGD, LocalRule(momentum, 0.1, steps=3, batch_size=4, carry_moments=True)])
def test_the_model_is_that_of_one_device(rule: LocalRule, others: list[str]) -> None:
    """To rounding: sums over clients are taken stack by stack."""
    ours, theirs = trained(rule, others), trained(rule, [])
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-12, atol=1e-12)


def test_each_device_has_a_stack_a_model_and_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []
    both = threading.Barrier(2, timeout=60)  # they train at once, or not at all

    def noted(trainer: Trainer, fit: Any, tasks: Any, *others: Any) -> TrainedStack:
        both.wait()
        seen.append((len(tasks), id(trainer.module), threading.get_ident()))
        return train_stack(trainer, fit, tasks, *others)

    monkeypatch.setattr(stacked_executor, "train_stack", noted)
    trained(SGD, ["cpu"])
    assert [clients for clients, _, _ in seen] == [5] * 4
    assert len({module for _, module, _ in seen}) == len({thread for _, _, thread in seen}) == 2


def test_a_run_on_several_repeats_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    made = Experiment(make_runs(TABLE)[0])
    for name in ("whole", "again"):
        list(run_events(made, tmp_path / name))
    steps = run_events(made, tmp_path / "cut")
    for progress in steps:
        if progress.events_done == 2:
            break
    steps.close()
    list(run_events(made, tmp_path / "cut", resume=True))
    whole, *others = (read_result(tmp_path / name).model(0) for name in ("whole", "again", "cut"))
    assert all(torch.equal(other[key], whole[key]) for other in others for key in whole)


def test_no_parameter_is_shared_by_two_devices() -> None:
    """Not even a frozen one, which all copies on one device have in common."""
    module = network(seed=1)
    first = next(iter(module._modules.values()))
    assert isinstance(first, nn.Linear)
    first.bias = Shared(first.bias.detach(), requires_grad=False)
    trainer = Trainer(module, POPULATION, SGD, seed=3)
    pairs = list(zip(trainer.module.parameters(), trainer.on("cpu").module.parameters(), strict=True))
    assert all(one is not other and one.equal(other) for one, other in pairs)
    assert [other.requires_grad for _, other in pairs] == [one.requires_grad for one, _ in pairs]


def test_an_error_on_one_of_them_names_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(trainer: Trainer, fit: Any, tasks: Any, *others: Any) -> TrainedStack:
        if tasks[0].client == 5:
            raise ValueError("a user's own")
        return train_stack(trainer, fit, tasks, *others)

    monkeypatch.setattr(stacked_executor, "train_stack", failing)
    with pytest.raises(RunError, match=r"event 0, cluster 0, clients? 5.*training failed \(ValueError: a user's own"):
        trained(SGD, ["cpu"])


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"executor": "serial"}, r"run\.device = 'cpu,cpu': needs run\.executor = 'stacked'; this run has"),
        ({"device": "cpu,tpu"}, r"run\.device = 'tpu': is not available here"),
        ({"device": "cpu,"}, r"run\.device = '': is not available here"),
    ],
)
def test_devices_that_cannot_be_used_are_refused(run: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Experiment(make_runs({**TABLE, "run": {**TABLE["run"], **run}})[0]).execution.make_executor()
