"""`atoll.run`: a whole run in one call, to the numbers of `atoll run`."""

import inspect
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import atoll

SETTINGS = {
    "name": "tiny",
    "rounds": 2,
    "data": {"partition": "major-class", "clients": 10, "samples": 20, "rho_device": 0.5},
    "clustering": {"clusters": 2},
    "local": {"steps": 2},
    "method": {"fraction": 1.0},
}
TWO = {**SETTINGS, "runs": [{"label": "A"}, {"label": "B", "method": {"name": "fedavg"}}]}


def test_a_result_is_what_the_folder_holds(tmp_path: Path) -> None:
    result = atoll.run(SETTINGS, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert result.history["test_accuracy"].tolist() == [row["test_accuracy"] for row in rows]
    assert result.history["round"].tolist() == [0, 1, 2]
    assert np.isnan(result.history["local_loss"][0])
    assert result.summary == json.loads((tmp_path / "run/summary.json").read_text())
    assert result.folder == tmp_path / "run"
    assert result.settings == atoll.make_runs(SETTINGS)[0]
    again = atoll.read_result(tmp_path / "run")
    assert all(torch.equal(again.model()[name], tensor) for name, tensor in result.model().items())


def test_a_frame_has_a_row_a_measurement_and_a_column_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    found = atoll.run(SETTINGS, method={"name": "ifca"}, data={"partition": "iid", "clients": 10})
    frame = found.frame()
    assert frame["test_accuracy"].tolist() == found.history["test_accuracy"].tolist()
    assert frame["cluster_accuracy/1"].tolist() == found.history["cluster_accuracy"][:, 1].tolist()
    assert len(frame) == 3
    assert {str(kind) for kind in frame.dtypes} == {"float64"}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(atoll.InputError, match=r"frame\(\) needs pandas; run pip install 'pandas>=2.2'"):
        found.frame()


def test_clusters_far_from_their_numbers_are_measured_all_the_same() -> None:
    """Only next tokens have perplexities: those of such losses would be beyond a float."""
    data = {"dataset": "regression", "partition": "planted", "clients": 8, "distance": 60.0}
    found = atoll.run(name="far", rounds=1, data=data, model={"name": "linear"}, method={"name": "ifca", "clusters": 2})
    assert found.history["test_loss"][0] > 710
    assert "cluster_perplexity" not in found.history


def test_without_a_folder_nothing_is_kept_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = atoll.run(SETTINGS)
    assert result.folder is None
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    kept = atoll.run(SETTINGS, tmp_path / "kept")
    assert all(np.array_equal(result.history[n], kept.history[n], equal_nan=True) for n in ("train_loss", "round"))
    module = result.module()
    assert all(torch.equal(tensor, result.model()[name]) for name, tensor in module.state_dict().items())
    assert not module.training


def test_progress_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    atoll.run(SETTINGS, progress=True)
    told = capfd.readouterr()
    assert told.out == ""
    assert "tiny" in told.err
    events = len(atoll.Experiment(atoll.make_runs(SETTINGS)[0]).method.schedule)
    assert f"{events}/{events} [" in told.err
    assert "all runs" not in told.err


def test_a_notebook_without_widgets_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(config={"IPKernelApp": {}}))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    for name in ("tqdm.auto", "tqdm.autonotebook", "tqdm.notebook"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert callable(atoll.api._tqdm())


def test_progress_of_several_runs_counts_them(capfd: pytest.CaptureFixture[str]) -> None:
    atoll.run_all({**SETTINGS, "runs": [{"label": "a"}, {"label": "b"}, {"label": "c"}]}, rounds=1, progress=True)
    told = capfd.readouterr()
    assert told.out == ""
    assert "all runs" in told.err
    assert "3/3" in told.err


def test_settings_are_laid_over_those_of_any_source(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text('name = "tiny"\nrounds = 2\n[data]\nclients = 10\nsamples = 20\n[clustering]\nclusters = 2\n')
    for source in (path, str(path), SETTINGS, atoll.make_runs(SETTINGS)[0]):
        settings = atoll.run(source, rounds=1, local={"lr": 0.2, "steps": 1}).settings
        assert (settings.rounds, settings.local.lr, settings.local.steps) == (1, 0.2, 1)
        assert settings.data.clients == 10


def test_an_experiment_is_run_as_it_is() -> None:
    experiment = atoll.Experiment(atoll.make_runs(SETTINGS)[0])
    assert atoll.run(experiment).settings == experiment.settings
    with pytest.raises(atoll.InputError, match="to change settings, pass its `settings`"):
        atoll.run(experiment, rounds=3)


def test_several_runs_are_named_and_can_be_chosen_or_all_run(tmp_path: Path) -> None:
    with pytest.raises(atoll.InputError, match=r"2 runs \(A; B\); choose one with only=..., or call atoll.run_all"):
        atoll.run(TWO, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert atoll.run(TWO, only="B").settings.method.name == "fedavg"
    results = atoll.run_all(TWO, tmp_path / "out")
    assert list(results) == ["A", "B"]
    assert results["B"].folder == tmp_path / "out" / "b"
    assert [run.label for run in atoll.find_runs([tmp_path / "out"])] == ["A", "B"]


def test_no_result_is_lost_where_a_label_is_the_experiments_name() -> None:
    assert len(atoll.run_all({**SETTINGS, "name": "a", "runs": [{}, {"label": "a"}]}, rounds=1)) == 2


def test_a_run_goes_on_and_a_finished_one_is_read(tmp_path: Path) -> None:
    steps = atoll.run_events(atoll.Experiment(atoll.make_runs(SETTINGS)[0]), tmp_path / "run")
    next(steps)
    next(steps)
    steps.close()
    with pytest.raises(atoll.InputError, match="is not finished"):
        atoll.read_result(tmp_path / "run")
    resumed = atoll.run(SETTINGS, tmp_path / "run", resume=True)
    whole = atoll.run(SETTINGS)
    assert all(torch.equal(whole.model()[name], tensor) for name, tensor in resumed.model().items())
    read = atoll.run(SETTINGS, tmp_path / "run", resume=True)
    assert read.history["wall_time"].tolist() == resumed.history["wall_time"].tolist()


def test_a_finished_run_whose_last_checkpoint_is_damaged_says_how_to_go_on(tmp_path: Path) -> None:
    settings = {**SETTINGS, "run": {"checkpoint_every": 1}}
    whole = atoll.run(settings, tmp_path)
    max(tmp_path.glob("checkpoint/*.safetensors")).write_bytes(b"damaged")
    told = r"has lost its last checkpoint; delete summary\.json and continue it by `atoll run` with --resume"
    with pytest.raises(atoll.InputError, match=told):
        atoll.read_result(tmp_path)
    with pytest.raises(atoll.InputError, match=told):
        atoll.run(settings, tmp_path, resume=True)
    (tmp_path / "summary.json").unlink()
    resumed = atoll.run(settings, tmp_path, resume=True)
    assert all(torch.equal(whole.model()[name], tensor) for name, tensor in resumed.model().items())


def test_models_of_clusters_without_one_of_all() -> None:
    result = atoll.run({**SETTINGS, "method": {"name": "ifca", "clusters": 2, "fraction": 1.0}})
    assert result.history["cluster_clients"].shape == (3, 2)
    assert set(result.model(1)) == set(result.model(0))
    with pytest.raises(atoll.InputError, match=r"^tiny: .*choose a cluster from 0 to 1"):
        result.model()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"local": {"learning": 1}}, "local.learning: unknown"),
        ({"resume": True}, "resume=True: needs the run's folder"),
        ({"run": {"trackers": ["tensorboard"]}}, "run.trackers: need the run's folder"),
        ({"only": "nothing"}, "no run has this"),
    ],
)
def test_bad_input_is_one_sentence(changes: dict[str, object], told: str) -> None:
    with pytest.raises(atoll.InputError, match=told):
        atoll.run(SETTINGS, **changes)  # type: ignore[arg-type]


def test_of_several_runs_the_bad_one_is_named_before_any_begins(tmp_path: Path) -> None:
    runs = [{"label": "A"}, {"label": "B", "run": {"probes": ["nothing"]}}]
    with pytest.raises(atoll.InputError, match=r"^run 'B': .*'nothing'"):
        atoll.run_all({**SETTINGS, "runs": runs}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_parameter_hides_a_setting() -> None:
    for function in (atoll.run, atoll.run_all):
        assert set(inspect.signature(function).parameters) & set(atoll.Settings.model_fields) == set()


def test_the_global_state_of_pytorch_and_numpy_is_left_alone() -> None:
    before = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002
    atoll.run(SETTINGS)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(np.random.get_state()) == before[1]  # noqa: NPY002


def test_a_drawn_model_is_that_of_the_experiment() -> None:
    experiment = atoll.Experiment(atoll.make_runs(SETTINGS)[0])
    data = experiment.population.data
    drawn = [atoll.read_model(atoll.draw_model(atoll.models.mlp, data, seed=0, cluster=c)) for c in (0, 0, 1)]
    (first,) = experiment.training.initial_models()
    assert all(torch.equal(first[name], drawn[0][name]) and torch.equal(drawn[1][name], first[name]) for name in first)
    assert not torch.equal(drawn[0]["1.weight"], drawn[2]["1.weight"])
