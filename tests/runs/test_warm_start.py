"""Runs that start from a model, and models that predict from inputs as they are stored."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import atoll
from atoll.data.datasets import load
from atoll.support.errors import InputError, SettingWarning

TINY: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 6, "samples": 30},
    "local": {"lr": 0.1, "steps": 2},
    "method": {"name": "fedavg", "fraction": 0.5},
    "run": {"executor": "serial"},
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and its model in two files."""
    place = tmp_path_factory.mktemp("before")
    model = atoll.run(TINY, place / "run", rounds=4).model()
    save_file(model, place / "model.safetensors")
    torch.save(model, place / "model.pt")
    save_file({**model, "1.weight": torch.zeros(3, 3)}, place / "other.safetensors")
    save_file({"1.weight": model["1.weight"]}, place / "part.safetensors")
    save_file({name: tensor * torch.nan for name, tensor in model.items()}, place / "nan.safetensors")
    torch.save([1, 2], place / "list.pt")
    torch.save(torch.nn.Linear(1, 1), place / "module.pt")
    (place / "text.safetensors").write_text("no tensors")
    return place


@pytest.mark.parametrize("start", ["run", "model.safetensors", "model.pt"])
def test_a_run_starts_from_a_file_or_another_run(start: str, before: Path) -> None:
    last = atoll.read_result(before / "run")
    first = atoll.run(TINY, model={"start": str(before / start)})
    assert first.history["train_loss"][0] == last.history["train_loss"][-1]
    assert first.history["train_loss"][-1] != last.history["train_loss"][-1]


def test_a_checkpoint_cut_short_by_a_kill_is_no_start(before: Path, tmp_path: Path) -> None:
    """Its tensors are written before what completes it; the one before it counts, as for a resume."""
    killed = tmp_path / "run"
    shutil.copytree(before / "run", killed)
    (killed / "checkpoint/event-00000099.safetensors").write_bytes(b"half")
    first = atoll.run(TINY, model={"start": str(killed)})
    assert first.history["train_loss"][0] == atoll.read_result(before / "run").history["train_loss"][-1]


def test_of_several_checkpoints_the_latest_is_the_start(before: Path, tmp_path: Path) -> None:
    atoll.run(TINY, tmp_path / "run")
    shutil.copytree(before / "run/checkpoint", tmp_path / "run/checkpoint", dirs_exist_ok=True)
    assert len([*(tmp_path / "run/checkpoint").glob("event-*.json")]) == 2
    first = atoll.run(TINY, model={"start": str(tmp_path / "run")})
    assert first.history["train_loss"][0] == atoll.read_result(before / "run").history["train_loss"][-1]


def test_moments_in_a_checkpoint_are_no_part_of_its_model(before: Path, tmp_path: Path) -> None:
    shutil.copytree(before / "run", tmp_path / "run")
    file = max((tmp_path / "run/checkpoint").glob("*.safetensors"))
    tensors = load_file(file)
    save_file(tensors | {f"{key}@momentum_buffer": each + 1 for key, each in tensors.items()}, file)
    note = json.loads(file.with_suffix(".json").read_text())
    note["tensors"] = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_suffix(".json").write_text(json.dumps(note))
    first = atoll.run(TINY, model={"start": str(tmp_path / "run")})
    assert first.history["train_loss"][0] == atoll.read_result(before / "run").history["train_loss"][-1]


def test_a_run_with_several_models_is_no_start(tmp_path: Path) -> None:
    atoll.run(TINY, tmp_path / "run", rounds=1, method={"name": "ifca", "clusters": 2})
    with pytest.raises(InputError, match=r"^model\.start = .*: the run has 2 models; choose one by `atoll export"):
        atoll.run(TINY, model={"start": str(tmp_path / "run")})


def test_a_checkpoint_whose_numbers_have_changed_is_no_start(before: Path, tmp_path: Path) -> None:
    shutil.copytree(before / "run", tmp_path / "run")
    file = max((tmp_path / "run/checkpoint").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")  # one number of many
    with pytest.raises(InputError, match=r"^model\.start = .*event-00000004\.safetensors is damaged: the checksum"):
        atoll.run(TINY, model={"start": str(tmp_path / "run")})


@pytest.mark.parametrize("executor", ["cores", pytest.param("ray", marks=pytest.mark.slow)])
def test_executors_start_alike_and_a_resume_keeps_the_start(executor: str, before: Path, tmp_path: Path) -> None:
    table = {**TINY, "model": {"start": str(before / "run")}}
    one = atoll.run(table)
    two = atoll.run(table, tmp_path / "a", run={"executor": executor, "workers": 2}, rounds=1)
    two = atoll.run(table, tmp_path / "a", run={"executor": executor, "workers": 2}, resume=True)
    assert one.history["train_loss"].tolist() == two.history["train_loss"].tolist()


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ("nowhere.pt", r"nowhere\.pt does not exist; give a \.safetensors or \.pt file, or a run's folder"),
        (".", "holds no checkpoint of a run"),
        ("other.safetensors", r"its '1\.weight' is \[3, 3\], the model's is \["),
        ("part.safetensors", r"is missing, the model's is \[.*\] \(one of [2-9] that differ\)$"),
        ("nan.safetensors", "holds numbers that are not finite"),
        ("list.pt", "must hold a state dict"),
        ("module.pt", r"must hold a state dict, tensors by name; save module\.state_dict\(\)"),
        ("text.safetensors", "cannot be read as a model"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(start: str, told: str, before: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"model\.start = .*{told}"):
        atoll.run(TINY, tmp_path / "a", model={"start": str(before / start)})
    assert not (tmp_path / "a").exists()


def test_clusters_that_must_differ_have_no_common_start(before: Path) -> None:
    with pytest.raises(InputError, match=r"model\.start = .*: cannot be used with method\.name = 'ifca'"):
        atoll.run(TINY, method={"name": "ifca", "clusters": 2}, model={"start": str(before / "run")})


@pytest.mark.parametrize("how", ["unit", "pool", "image"])
def test_predictions_take_stored_inputs(how: str) -> None:
    result = atoll.run(TINY, rounds=8, data={"standardise": how})
    data = load("digits")
    classes = result.predict(data.test_inputs)
    assert (classes == data.test_targets).mean() == pytest.approx(result.history["test_accuracy"][-1])
    shares = result.predict(data.test_inputs[:5], probabilities=True)
    assert shares.shape == (5, 10)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    with pytest.raises(InputError, match=r"predict: inputs must be numbers \[n, .*\], not \[8, 8\]"):
        result.predict(np.zeros((8, 8)))


@pytest.mark.usefixtures("every_torch_warning")
def test_predictions_take_inputs_as_data_sets_do_and_refuse_missing_numbers() -> None:
    result, data = atoll.run(TINY, rounds=1), load("digits")
    stored = data.test_inputs[:3]
    classes = result.predict(stored).tolist()
    kept = np.frombuffer(stored.tobytes(), stored.dtype).reshape(stored.shape)  # read-only
    for given in (stored.tolist(), torch.from_numpy(stored), stored.astype(">f8"), stored.astype(np.longdouble), kept):
        assert result.predict(given).tolist() == classes
    missing = stored.astype(float)
    missing[1, ..., 2] = np.nan
    with pytest.raises(InputError, match="predict: inputs: must hold finite numbers; 8 of 192 are NaN or infinite"):
        result.predict(missing)
    with pytest.raises(InputError, match="predict: inputs: cannot be read as one array of numbers"):
        result.predict([[1.0, 2.0], [3.0]])


def two_layers(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))


def first_frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    module = two_layers(shape, classes)
    module.get_submodule("1").requires_grad_(False)
    return module


@pytest.mark.parametrize("travels", ["trainable", ["3.*"], "all"])
def test_predictions_have_the_frozen_layers_of_the_start(travels: str | list[str], tmp_path: Path) -> None:
    atoll.run(TINY, tmp_path / "b", rounds=4, model={"name": two_layers})
    model = {"name": first_frozen, "travels": travels, "start": str(tmp_path / "b")}
    result, data = atoll.run(TINY, tmp_path / "r", seed=5, model=model), load("digits")
    for each in (result, atoll.read_result(tmp_path / "r")):
        share = (each.predict(data.test_inputs) == data.test_targets).mean()
        assert share == pytest.approx(result.history["test_accuracy"][-1])
    further = atoll.run(TINY, seed=6, model={**model, "start": str(tmp_path / "r")})
    assert further.history["test_loss"][0] == result.history["test_loss"][-1]


def test_a_run_that_others_start_from_is_not_overwritten_by_them(tmp_path: Path) -> None:
    kept = atoll.run(TINY, tmp_path / "a", model={"name": two_layers})
    with pytest.raises(InputError, match=r"model\.start = '.*a': begins with what --overwrite would delete from .*a"):
        atoll.run(TINY, tmp_path / "a", model={"name": two_layers, "start": str(tmp_path / "a")}, overwrite=True)
    part = {"name": two_layers, "travels": ["3.*"]}
    atoll.run(TINY, tmp_path / "b", model={**part, "start": str(tmp_path / "a")})
    with pytest.raises(InputError, match=r"model\.start = '.*b': begins with what --overwrite would delete from .*a"):
        atoll.run(TINY, tmp_path / "a", model={**part, "start": str(tmp_path / "b")}, overwrite=True)
    assert atoll.read_result(tmp_path / "a").history["test_loss"][-1] == kept.history["test_loss"][-1]


def test_a_start_of_a_start_that_is_gone_is_named_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    part = {"name": two_layers, "travels": ["3.*"]}
    for start, out in ((None, "a"), ("a", "b"), ("b", "c")):
        atoll.run(TINY, out, model={"name": two_layers} if start is None else {**part, "start": start})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"model\.start = '\.\./c': model\.start = 'b': .*b does not exist"):
        atoll.run(TINY, model={**part, "start": "../c"})


def test_predictions_say_what_stayed_with_the_clients() -> None:
    result = atoll.run(TINY, method={"name": "fedper"}, model={"name": two_layers})
    told = "'3.bias' and 1 more tensor stayed with the clients, and are as they were at the start"
    with pytest.warns(SettingWarning, match=told):
        result.predict(load("digits").test_inputs[:2])


def test_regression_predicts_numbers() -> None:
    result = atoll.run(
        TINY, data={"dataset": "regression", "partition": "iid"}, method={"name": "fedavg"}, model="linear"
    )
    data = atoll.Experiment(result.settings).population.data
    errors = (result.predict(data.test_inputs) - data.test_targets) ** 2 / 2
    assert errors.mean() == pytest.approx(result.history["test_loss"][-1], rel=1e-4)


@pytest.mark.parametrize(
    "method", [{"name": "fedavg"}, {"name": "ifca", "clusters": 2}, {"name": "fedper"}, {"name": "centralized"}]
)
def test_results_of_single_clients(method: dict[str, Any], tmp_path: Path) -> None:
    result = atoll.run(TINY, tmp_path / "a", method=method, run={"probes": ["client_accuracy"], "executor": "serial"})
    found = result.clients()
    assert [len(each) for each in found.values()] == [6] * 4
    assert found["accuracy"].mean() == pytest.approx(result.history["client_accuracy"][-1])
    again = atoll.read_result(tmp_path / "a").clients()
    assert {name: each.tolist() for name, each in again.items()} == {
        name: each.tolist() for name, each in found.items()
    }


@pytest.mark.parametrize("method", ["fedavg", "ditto", "ifca"])
def test_in_regression_single_clients_have_losses(method: str) -> None:
    planted = {"dataset": "regression", "clients": 4, "samples": 60}
    wanted = {"name": method, "clusters": 2} if method == "ifca" else {"name": method, "fraction": 1.0}
    result = atoll.run(rounds=2, data=planted, method=wanted, run={"executor": "serial"})
    found = result.clients()
    assert sorted(found) == ["client", "cluster", "loss", "samples"]
    experiment = atoll.Experiment(result.settings)
    clients, module = experiment.clients.dealt, result.module(0 if method == "ifca" else None)
    for k, loss in enumerate(found["loss"]):
        model = result.state.starts[found["cluster"][k]] if method == "ifca" else result.model()
        module.load_state_dict(model | (result.state.clients.get(k, {}) if method == "ditto" else {}))
        rows = clients.samples(k)
        inputs, targets = (torch.as_tensor(each[rows]) for each in (clients.data.inputs, clients.data.targets))
        own = torch.nn.functional.mse_loss(module(inputs).squeeze(), targets.squeeze())
        assert loss == pytest.approx(own.item() / 2, rel=1e-5)
