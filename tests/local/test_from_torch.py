"""PyTorch's optimisers and schedules of learning rates, against PyTorch itself."""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import atoll
from atoll.experiment.experiment import Experiment
from atoll.local.from_torch import OPTIMIZER_CLASSES, REFUSED, SCHEDULE_CLASSES
from atoll.local.rates import listed, scheduled_rates, warmed_up
from atoll.local.task import ClientTask
from atoll.local.weights import load_model
from atoll.settings.given_objects import named
from atoll.settings.validation import Settings, validate
from atoll.support.errors import InputError

ROUNDS = 9
TINY: dict[str, Any] = {
    "rounds": ROUNDS,
    "data": {"clients": 4, "samples": 20},
    "method": {"name": "fedavg", "fraction": 0.5},
    "run": {"executor": "serial"},
}

OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in OPTIMIZER_CLASSES},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"betas": [0.8, 0.95], "amsgrad": True},
    "AdamW": {"betas": [0.8, 0.95], "weight_decay": 0.1},
    "Rprop": {"etas": [0.4, 1.1], "step_sizes": [0.001, 0.1]},
}

SCHEDULES: dict[str, dict[str, Any]] = {
    **{name: {} for name in SCHEDULE_CLASSES},
    "CosineAnnealingLR": {"T_max": 5, "eta_min": 0.001},
    "CosineAnnealingWarmRestarts": {"T_0": 2, "T_mult": 2},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 3},
    "ExponentialLR": {"gamma": 0.7},
    "MultiStepLR": {"milestones": [2, 5], "gamma": 0.5},
    "OneCycleLR": {"max_lr": 0.3, "total_steps": ROUNDS},
    "StepLR": {"step_size": 3},
}


def classes_of(module: Any, base: type) -> set[str]:
    found = inspect.getmembers(module, lambda each: inspect.isclass(each) and issubclass(each, base))
    return {name for name, each in found if each is not base and not name.startswith("_")}


def with_local(**local: Any) -> Settings:
    return validate(named({**TINY, "local": {"lr": 0.05, "steps": 3, "batch_size": "full", **local}}))


def matrix(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model of one matrix, which is all that Muon takes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes, bias=False))


def test_every_optimiser_and_schedule_of_pytorch_is_known_or_refused() -> None:
    optimizers = {name.lower() for name in classes_of(torch.optim, torch.optim.Optimizer)}
    assert optimizers == {"sgd", *map(str.lower, OPTIMIZER_CLASSES), "lbfgs", "sparseadam"}
    schedules = {name.lower() for name in classes_of(lr_scheduler, lr_scheduler.LRScheduler)}
    assert schedules == {*map(str.lower, SCHEDULE_CLASSES), *REFUSED} - {"lbfgs", "sparseadam"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_takes_the_steps_of_pytorch(name: str) -> None:
    own = OPTIMIZERS[name]
    settings = with_local(optimizer=f"torch.optim.{name}", **own)
    if name == "Muon":
        settings = validate(named({**settings.model_dump(), "model": matrix}))
    experiment = Experiment(settings)
    experiment.check()
    trainer, start = experiment.training.trainer().for_executors(), experiment.training.start()
    update = trainer.train(ClientTask(0, 0, 0, 0, 1, start))

    module = experiment.initial.copy()
    load_model(module, start)
    data, rows = experiment.clients.population.data, experiment.clients.population.samples(1)
    inputs = torch.from_numpy(data.inputs_of(rows)) * torch.tensor(data.scale, dtype=torch.float32)
    targets = torch.from_numpy(data.labels_of(rows))
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}
    optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.05, **arguments)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs.float()), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert any(not torch.equal(update.model[key], start[key]) for key in start)
    for key, tensor in module.state_dict().items():
        torch.testing.assert_close(update.model[key], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_gives_the_rates_of_pytorch(name: str) -> None:
    own = SCHEDULES[name]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.05, momentum=0.9)
    without = {"cycle_momentum": False} if name in ("CyclicLR", "OneCycleLR") else {}
    scheduler = getattr(lr_scheduler, name)(optimizer, **own, **without)
    expected = []
    for _ in range(ROUNDS):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        if len(expected) < ROUNDS:
            scheduler.step()
    for spelling in (name, f"torch.optim.lr_scheduler.{name}"):
        assert list(Experiment(with_local(schedule=spelling, **own)).plan.rule.rates) == expected
    assert len(set(expected)) > 1


def test_the_rate_used_is_a_column_of_the_rows() -> None:
    result = atoll.run(with_local(schedule="cosine", lr_decay=0.9))
    expected = [0.05 * (1 + np.cos(np.pi * t / ROUNDS)) / 2 * 0.9**t for t in range(ROUNDS)]
    np.testing.assert_allclose(result.history["learning_rate"][1:], expected)
    assert "learning_rate" not in atoll.run(with_local(), rounds=1).history


def test_the_rate_of_a_round_is_that_of_a_run_at_this_rate() -> None:
    """One round at 0.1 and one at 0.02 change the model as the list says, not as either rate would."""
    both = atoll.run(with_local(schedule="list", rates=[0.1, 0.02]), rounds=2).state
    first = atoll.run(with_local(lr=0.1), rounds=2).state
    none = atoll.run(with_local(schedule="list", rates=[0.1, 0.0]), rounds=2).state
    one = atoll.run(with_local(lr=0.1), rounds=1).state
    assert all(torch.equal(none.server[key], one.server[key]) for key in one.server)  # type: ignore[index, union-attr]
    assert all(not torch.equal(both.server[key], each.server[key]) for each in (first, none) for key in one.server)  # type: ignore[index, union-attr]


def halved(round: int, lr: float, every: int = 2) -> float:
    return lr * 0.5 ** (round // every)


def chained(optimizer: Any, rounds: int) -> Any:
    warm, cool = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, rounds)
    return lr_scheduler.SequentialLR(optimizer, [warm, cool], milestones=[2])


def of_numpy(round: int) -> np.float32:
    return np.float32(0.5**round)


def of_torch(round: int) -> torch.Tensor:
    return torch.tensor(0.5**round)


def test_functions_of_ones_own_and_a_warm_up() -> None:
    def rates(**local: Any) -> list[float]:
        return list(Experiment(with_local(**local)).plan.rule.rates)

    assert rates(schedule=halved, every=3) == [0.05] * 3 + [0.025] * 3 + [0.0125] * 3
    listed = [0.05 * (each + 1) for each in range(ROUNDS)]
    for wanted in (
        {"schedule": "list", "rates": listed},
        {"schedule": "OneCycleLR", "max_lr": 0.4},
        {"schedule": halved},
    ):
        assert rates(**wanted, lr_factor=0.1) == pytest.approx([0.1 * each for each in rates(**wanted)], rel=1e-12)
    assert rates(schedule=chained)[:3] == pytest.approx([0.005, 0.0275, 0.05])
    assert rates(warmup_rounds=4)[:6] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05, 0.05])
    for warmup in (ROUNDS, ROUNDS + 4):
        longer = [0.05 * (each + 1) / (warmup + 1) for each in range(ROUNDS)]
        assert rates(warmup_rounds=warmup, schedule="cosine") == pytest.approx(longer)
        assert rates(warmup_rounds=warmup, schedule="OneCycleLR", max_lr=0.4) == pytest.approx(longer)
    for own in (of_numpy, of_torch):
        assert rates(schedule=own)[:3] == [1.0, 0.5, 0.25]
    assert rates(warmup_rounds=2, schedule="step", step_size=1)[2:4] == pytest.approx([0.05, 0.005])


def tuples(params: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> Any:
    assert isinstance(betas, tuple)
    return torch.optim.Adam(params, lr, betas=betas)


def test_an_optimiser_of_ones_own_may_take_tuples() -> None:
    assert with_local(optimizer=tuples, betas=[0.8, 0.9]).local.get("betas") == (0.8, 0.9)
    with pytest.raises(InputError, match=r"local\.betas = \[0\.8\]: must be a list of 2, each entry a finite number"):
        with_local(optimizer=tuples, betas=[0.8])


@pytest.mark.parametrize(
    ("local", "told"),
    [
        ({"optimizer": "torch.optim.LBFGS"}, r"local\.optimizer = 'LBFGS': measures the loss several"),
        ({"optimizer": "sparseadam"}, "local.optimizer = 'sparseadam': takes sparse gradients only"),
        ({"optimizer": "torch.optim.AdamV"}, "local.optimizer = 'adamv': unknown, did you mean 'adam"),
        ({"optimizer": "muon"}, r"local\.optimizer = 'Muon': PyTorch rejects its settings \(Muon only supports 2D"),
        ({"optimizer": "adamw", "betas": 0.9}, "local.betas = 0.9: must be a list of 2"),
        ({"optimizer": "adamw", "betas": [0.9, 2]}, "local.optimizer = 'AdamW': PyTorch rejects .* index 1"),
        ({"optimizer": "adamw", "rho": 0.9}, "local.rho: unknown|local.rho: is taken by"),
        ({"schedule": "CosinAnnealing"}, "local.schedule = 'CosinAnnealing': unknown, did you mean"),
        ({"schedule": "ReduceLROnPlateau"}, "rates must be known before training"),
        ({"schedule": "LambdaLR"}, "name a function of round and lr"),
        ({"schedule": "step"}, "local.step_size is not set, but local.schedule = 'StepLR' needs it"),
        ({"schedule": "list", "rates": [0.1, 0.2], "warmup_rounds": 2}, "local.rates: 2 given for 7 rounds besides"),
        ({"schedule": "list", "rates": [0.1, 0.2]}, "local.rates: 2 given for 9 rounds besides"),
        ({"schedule": "OneCycleLR", "max_lr": 0.1, "total_steps": 4}, "gives no rate for round 5 of 9 besides warm-up"),
        ({"schedule": "list", "rates": [0.1] * 8 + [-1.0]}, r"local\.rates = .*: must be a list"),
        ({"schedule": "step", "step_size": 0}, r"gives no rate for round 1 of 9 besides warm-up \(ZeroDivisionError"),
        ({"schedule": "cosine", "T_max": 0}, r"gives no rate for round 1 of 9 besides warm-up \(ZeroDivisionError"),
        (
            {"schedule": "CyclicLR", "base_lr": 0.1, "max_lr": 0.2, "step_size_up": 0, "step_size_down": 0},
            r"local\.schedule = 'CyclicLR': PyTorch rejects its settings \(.*zero",
        ),
        ({"schedule": lambda round: -1.0}, "the rate of round 0 is -1.0; must be a finite number of at least 0"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(local: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Experiment(with_local(**local)).check()


@pytest.mark.more
@pytest.mark.parametrize("executor", ["cores", "stacked"])
@pytest.mark.parametrize("method", ["fedcluster", "fedasync", "scaffold"])
def test_rates_by_round_are_the_same_on_other_executors(executor: str, method: str) -> None:
    own: dict[str, Any] = {"lr": 0.05, "steps": 2, "schedule": "cosine"}
    few = {"concurrency": 2} if method == "fedasync" else {}
    if method == "scaffold" and executor == "stacked":
        pytest.skip("trains client by client")
    both = [
        atoll.run(
            TINY,
            rounds=4,
            local=own,
            method={"name": method, **few},
            clustering={"clusters": 2},
            run={"executor": each},
        )
        for each in ("serial", executor)
    ]
    for one, other in zip(*(each.state.starts for each in both), strict=True):
        for key in one:
            if executor == "cores":
                assert torch.equal(one[key], other[key])
            else:
                torch.testing.assert_close(one[key], other[key])


def test_a_scheduled_rate_survives_a_resume(tmp_path: Path) -> None:
    settings = with_local(schedule="cosine")
    whole = atoll.run(settings, tmp_path / "whole")
    steps = atoll.run_events(Experiment(settings), tmp_path / "cut")
    for step in steps:
        if step.events_done == 4:
            break
    steps.close()
    rest = atoll.run(settings, tmp_path / "cut", resume=True)
    assert whole.history["learning_rate"][1:].tolist() == rest.history["learning_rate"][1:].tolist()
    assert all(torch.equal(whole.state.server[key], rest.state.server[key]) for key in whole.state.server)  # type: ignore[index, union-attr]


def test_a_rate_that_rounding_puts_below_zero_is_zero_and_a_negative_one_is_refused() -> None:
    assert warmed_up("mine:rates", [0.5, -1e-16, 0.0], 0.5, 0) == (0.5, 0.0, 0.0)
    for wrong in (-1e-9, float("nan"), float("inf"), True):
        with pytest.raises(InputError, match=r"local\.schedule = 'mine:rates': the rate of round 1 is"):
            warmed_up("mine:rates", [0.5, wrong], 0.5, 0)


def test_a_schedule_that_gives_no_rate_for_a_round_is_refused() -> None:
    told = r"^local\.schedule: gives no rate for round {} of 4 besides warm-up \({}: "
    with pytest.raises(InputError, match=told.format(1, "TypeError")):
        scheduled_rates(lr_scheduler.ReduceLROnPlateau, 0.1, 4)
    with pytest.raises(InputError, match=told.format(3, "ValueError")):
        scheduled_rates(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2), 0.1, 4)


def test_a_list_needs_a_rate_for_every_round() -> None:
    assert [listed(r, 2, [0.1, 0.2]) for r in range(2)] == [0.1, 0.2]
    with pytest.raises(InputError, match="1 given for 2 rounds"):
        listed(0, 2, [0.1])
