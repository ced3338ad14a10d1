"""Exported models are those of the run's end, and compute in ONNX what they compute in PyTorch."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import atoll
from atoll.data.dataset import Dataset
from atoll.experiment.experiment import Experiment
from atoll.runs.export import export_model, load_module
from atoll.runs.saved import read_saved
from atoll.settings.experiment_file import compose
from tests.tiers import thinned

TINY: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 6, "samples": 8},
    "local": {"steps": 2, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"fraction": 0.5},
}


def train(folder: Path, events: int | None = None, **changes: Any) -> atoll.State:
    """Run the tiny experiment, to its end or so many events, and return the state of a run of its own."""
    settings = compose([TINY, changes])[0]
    with closing(atoll.run_events(Experiment(settings), folder)) as steps:
        for progress in steps:
            if progress.events_done == events:
                break
    experiment = Experiment(settings)
    state = atoll.init(experiment.method, *experiment.training.best_start(experiment.execution.make_executor()))
    with closing(experiment.execution.make_executor()) as executor:
        for step in atoll.train(experiment.method, executor, state):
            state = step.state
            if state.events_done == events:
                break
    return state


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor] | None) -> None:
    assert wanted is not None
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def test_the_servers_model_in_two_formats(tmp_path: Path) -> None:
    state = train(tmp_path / "run")
    made = export_model(tmp_path / "run")
    assert made.file == tmp_path / "run" / "model.safetensors"
    assert (made.events_done, made.is_finished) == (4, True)
    assert_equal(safetensors.torch.load_file(made.file), state.server)
    file = export_model(tmp_path / "run", "state-dict", tmp_path / "new" / "m.pt").file
    assert_equal(torch.load(file, weights_only=True), state.server)
    module = load_module(read_saved(tmp_path / "run").settings, read_saved(tmp_path / "run").model())
    assert_equal(module.state_dict(), state.server)


def test_a_tables_columns_are_told(tmp_path: Path) -> None:
    lines = [f"{i % 4},{i},{'AB'[i % 2]},{i % 3}" for i in range(24)]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,ward,y", *lines]))
    data: dict[str, Any] = {"dataset": "table", "root": str(tmp_path / "t.csv"), "target": "y"}
    data |= {"client": "site", "clients": 4, "partition": "natural", "inputs": ["x", "ward"]}
    result = atoll.run(rounds=1, data=data, method="fedavg", out=tmp_path / "run")
    made = export_model(tmp_path / "run")
    assert made.inputs.startswith("the table's columns x, ward = A, ward = B, encoded and scaled as for training")
    assert "times 1" not in made.inputs
    with safetensors.safe_open(made.file, "pt") as file:
        assert json.loads(file.metadata()["columns"]) == ["x", "ward = A", "ward = B"]
    assert result.module()(torch.zeros(1, 3)).shape == (1, 3)
    (tmp_path / "t.csv").write_text("\n".join(["site,x,ward,y", *lines, "3,9000,A,0"]))  # another mean of x
    changed = export_model(tmp_path / "run")
    assert changed.inputs == "data.standardise = unit"
    with safetensors.safe_open(changed.file, "pt") as file:
        assert not {"scaling", "columns"} & file.metadata().keys()
    pytest.importorskip("onnxscript")
    with pytest.raises(atoll.InputError, match=r"^data\.root/t\.csv \(.*\) has changed since .*run was started;"):
        export_model(tmp_path / "run", "onnx")


def test_an_unfinished_run(tmp_path: Path) -> None:
    state = train(tmp_path / "run", events=3)
    made = export_model(tmp_path / "run")
    assert (made.events_done, made.is_finished) == (3, False)
    assert_equal(safetensors.torch.load_file(made.file), state.server)


def test_a_clusters_model(tmp_path: Path) -> None:
    state = train(tmp_path / "run", method={"name": "cfl-mgd", "clusters": 3, "fraction": 1.0})
    file = export_model(tmp_path / "run", cluster=2).file
    assert file.name == "model-cluster-2.safetensors"
    bare = {name: tensor for name, tensor in state.starts[2].items() if "@" not in name}
    assert len(bare) < len(state.starts[2])  # CFL-MGD's models carry their momentum, which stays behind
    assert_equal(safetensors.torch.load_file(file), bare)
    told = "makes 3 models, none for all clients; choose a cluster from 0 to 2 by cluster=, or --cluster$"
    with pytest.raises(atoll.InputError, match=told):
        export_model(tmp_path / "run")
    with pytest.raises(atoll.InputError, match=r"cluster 3: .* has the clusters 0 to 2"):
        export_model(tmp_path / "run", cluster=3)
    with pytest.raises(atoll.InputError, match=r"^cluster = 'north': must be a whole number"):
        atoll.read_result(tmp_path / "run").model("north")  # type: ignore[arg-type]


def test_the_mean_of_the_aggregators(tmp_path: Path) -> None:
    """The export of a decentralised run scores what its last row of metrics says."""
    changes: dict[str, Any] = {
        "rounds": 10,
        "data": {"partition": "one-label", "clients": 12, "samples": None, "size_ratio": 3},
        "method": {"name": "hierarchical", "pattern": "decsyn"},
        "clustering": {"clusters": 4, "method": "comaw"},
        "local": {"steps": 1},
    }
    train(tmp_path / "run", **changes)
    saved = read_saved(tmp_path / "run")
    score = Experiment(saved.settings).execution.make_evaluator().score(saved.model())
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert score.train_loss == last["train_loss"]
    assert score.test_accuracy == last["test_accuracy"]
    assert_equal(saved.model(1), saved.state.starts[1])


def images(root: str | None = None) -> Dataset:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(256, size=(60, 3, 32, 32), dtype=np.uint8), np.arange(60) % 10
    return Dataset("pictures", pixels, labels, pixels, labels, classes=10, scale=1 / 255)


@pytest.mark.more
@pytest.mark.parametrize("model", thinned(["mlp", "lr", "cnn", "alexnet"], 1))
def test_onnx_computes_the_same(tmp_path: Path, model: str) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    train(tmp_path / "run", data={"dataset": f"{__name__}:images"}, model={"name": model})
    made = export_model(tmp_path / "run", "onnx")
    saved = read_saved(tmp_path / "run")
    module = load_module(saved.settings, saved.model())
    session = onnxruntime.InferenceSession(made.file, providers=["CPUExecutionProvider"])
    (given,), (gives,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape[1:], gives.name) == ("input", [3, 32, 32], "output")
    for batch in (1, 2, 7):
        sample = torch.rand(batch, 3, 32, 32)
        (found,) = session.run(None, {"input": 255 * sample.numpy()})  # as stored: the graph scales them
        np.testing.assert_allclose(found, module(sample).detach().numpy(), atol=1e-5)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        atoll.InputError, match=r"needs onnx and onnxscript; run pip install 'onnx>=1.18' 'onnxscript>=0.5'"
    ):
        export_model(tmp_path, "onnx")


def test_damaged_checkpoints(tmp_path: Path) -> None:
    train(tmp_path / "run", run={"checkpoint_every": 1})
    first, last = sorted((tmp_path / "run" / "checkpoint").glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-1])
    made = export_model(tmp_path / "run")
    assert (made.events_done, made.is_finished) == (2, False)  # the checkpoint before it, so not the run's end
    first.unlink()
    with pytest.raises(atoll.InputError, match="all its checkpoints are damaged, so there is no model"):
        export_model(tmp_path / "run")


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(atoll.InputError, match="nowhere does not exist"):
        export_model(tmp_path / "nowhere")
    with pytest.raises(atoll.InputError, match="is not a run"):
        export_model(tmp_path)
    train(tmp_path / "runs" / "one")
    with pytest.raises(atoll.InputError, match="runs holds several runs; give one of them: one"):
        export_model(tmp_path / "runs")
    with pytest.raises(atoll.InputError, match="is a folder; give the path of a file"):
        export_model(tmp_path / "runs" / "one", out=tmp_path)
    for file in (tmp_path / "runs" / "one" / "checkpoint").iterdir():
        file.unlink()
    with pytest.raises(atoll.InputError, match="it has no checkpoint yet"):
        export_model(tmp_path / "runs" / "one")
