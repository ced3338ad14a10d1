"""`data.test_samples`: models are measured on a fixed, seeded draw of the test samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from atoll import Dataset, Experiment, InputError, read_model, run, run_all
from atoll.data.datasets import load
from atoll.experiment.client_data import load_dataset, make_test_clients
from atoll.settings.validation import validate

DIGITS = load("digits")


def drawn(seed: int = 0, **given: Any) -> Dataset:
    return load_dataset(validate({"seed": seed, "data": {"test_samples": 50, **given}}))


def pooled(**given: Any) -> Dataset:
    """Ten test samples, whose input is their number."""
    tests = np.arange(10.0)[:, None]
    return Dataset(
        "pooled", np.zeros((20, 1)), np.arange(20) % 2, tests, given.pop("labels", np.arange(10) % 2), 2, **given
    )


def test_the_draw_is_part_of_the_test_set_and_the_seed_s() -> None:
    data = drawn()
    rows = [int(np.flatnonzero((DIGITS.test_inputs == each).all(axis=(1, 2, 3)))[0]) for each in data.test_inputs]
    assert rows == sorted(set(rows))
    assert len(rows) == 50
    assert np.array_equal(data.test_targets, DIGITS.test_targets[rows])
    assert np.array_equal(data.inputs, DIGITS.inputs)
    assert np.array_equal(drawn().test_inputs, data.test_inputs)
    assert not np.array_equal(drawn(seed=1).test_inputs, data.test_inputs)


@pytest.mark.parametrize("samples", [None, len(DIGITS.test_inputs), 10**9])
def test_all_are_used_where_the_test_set_has_no_more(samples: int | None) -> None:
    assert len(drawn(test_samples=samples).test_inputs) == len(DIGITS.test_inputs)


def test_a_run_is_measured_on_the_draw_and_trains_as_before() -> None:
    table = {"rounds": 2, "model": "linear", "method": "fedavg"}
    few, all_ = (run(table, data={"clients": 4, "test_samples": samples}).history for samples in (50, None))
    assert few["train_loss"].tolist() == all_["train_loss"].tolist()
    assert few["test_loss"].tolist() != all_["test_loss"].tolist()
    made = Experiment(model="linear", method="fedavg", data={"clients": 4, "test_samples": 50})
    data, module = made.population.data, made.module
    with torch.no_grad():
        outputs = module(torch.as_tensor(data.test_inputs * data.scale, dtype=next(module.parameters()).dtype))
    targets = torch.as_tensor(data.test_targets)
    loss, accuracy = made.execution.make_evaluator().test(read_model(module))
    assert loss == pytest.approx(cross_entropy(outputs, targets).item(), rel=1e-5)
    assert accuracy == (outputs.argmax(dim=1) == targets).double().mean().item()


def test_groups_and_owners_go_with_their_samples() -> None:
    own = pooled(groups=np.arange(20) // 10, test_groups=np.arange(10) // 5, owners=np.arange(20) % 5,
                 test_owners=np.arange(10) % 5)  # fmt: skip
    made = Experiment(data={"dataset": own, "clients": 5, "partition": "natural", "test_samples": 6})
    data, numbers = made.population.data, made.population.data.test_inputs[:, 0]
    assert len(data.test_inputs) == 6
    assert np.array_equal(data.test_groups, numbers // 5)  # type: ignore[arg-type]
    tests = make_test_clients(made.settings, made.population)
    for client in range(len(tests)):
        assert len({int(numbers[row]) % 5 for row in tests.samples(client)}) == 1


def test_each_copy_keeps_its_own_labels() -> None:
    labels = np.concatenate([np.arange(10) % 2, 1 - np.arange(10) % 2])
    own = pooled(turns=(0, 0), labels=labels)
    data = Experiment(data={"dataset": own, "clients": 2, "test_samples": 6}).population.data
    numbers = data.test_inputs[:, 0].astype(int)
    assert data.test_targets.tolist() == [*(numbers % 2), *(1 - numbers % 2)]


def test_too_few_for_the_methods_that_test_client_by_client_name_the_setting() -> None:
    table = {"clients": 4, "partition": "rotated", "samples": 50}
    with pytest.raises(InputError, match=r"^data\.test_samples = 4: too few .*group 0 has 4 samples, .* need 50"):
        run(method="ifca", model="linear", rounds=1, data={**table, "test_samples": 4})
    with pytest.raises(InputError, match=r"^data\.clients = 4: group 0 has 1437 samples, .* need 2000"):
        run(method="ifca", model="linear", rounds=1, data={**table, "samples": 2000, "test_samples": 4})
    with pytest.raises(InputError, match=r"^data\.test_samples = 1: too few to partition: data\.skew_levels = 2: "):
        run(
            method="ifca",
            model="linear",
            rounds=1,
            data={"clients": 4, "skew": "noise", "skew_levels": 2, "test_samples": 1},
        )
    with pytest.raises(InputError, match=r"^data\.clients = 4: group 0 has 360 samples, .* need 1000"):  # all are used
        run(method="ifca", model="linear", rounds=1, data={**table, "samples": 1000, "test_samples": 10**9})


def test_too_few_for_one_of_several_runs_leave_nothing(tmp_path: Path) -> None:
    data = {"clients": 4, "skew": "noise", "skew_levels": 2, "test_samples": 1}
    runs = [{"label": name, "method": {"name": name}} for name in ("fedavg", "ifca")]
    with pytest.raises(InputError, match=r"too few to partition: data\.skew_levels = 2: "):
        run_all({"rounds": 1, "model": {"name": "linear"}, "data": data, "runs": runs}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
