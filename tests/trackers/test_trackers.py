"""Trackers: what was logged is read back, and equals the rows of ``metrics.jsonl``, each of them once."""

import importlib
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from atoll import Experiment, InputError, RunError, run_events
from atoll.runs.checkpointer import Checkpointer
from atoll.runs.run import RunProgress
from atoll.runs.run_folder import RunFolder
from atoll.settings.validation import validate
from atoll.trackers import hyperparameters, tracked
from atoll.trackers.mlflow import require_mlflow
from atoll.trackers.tensorboard import require_tensorboard
from atoll.trackers.tracking import TRACKERS
from atoll.trackers.wandb import require_wandb
from tests.tiers import thinned

Series = dict[str, list[tuple[int, float]]]

NAMES = ["tensorboard", "mlflow", "wandb"]
EACH = pytest.mark.parametrize("name", thinned(NAMES, 1))


@pytest.fixture(autouse=True)
def _no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's environment does not say where to log."""
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def experiment(*trackers: str, lr: float = 0.05) -> Experiment:
    """IFCA on a few digits: its rows have lists with one entry a cluster, and a matrix."""
    return Experiment(
        validate(
            {
                "name": "tiny",
                "label": "IFCA",
                "rounds": 4,
                "data": {"partition": "rotated", "clients": 8, "samples": 8},
                "local": {"lr": lr, "steps": 2, "batch_size": 4},
                "clustering": {"clusters": 2},
                "method": {"name": "ifca"},
                "run": {"trackers": list(trackers), "executor": "serial"},
            }
        )
    )


def steps(of: Experiment, place: Path, resume: bool = False, overwrite: bool = False) -> Iterator[RunProgress]:
    return tracked(run_events(of, place, resume, overwrite), of.settings, place, resume)


def carry_to(of: Experiment, place: Path, events: int, resume: bool = False) -> list[str]:
    """Carry a run out until so many events are done; return its warnings."""
    warnings: list[str] = []
    with closing(tracked(run_events(of, place, resume), of.settings, place, resume)) as run:
        for progress in run:
            warnings += progress.warnings
            if progress.events_done == events and progress.events > events:
                break
    return warnings


def rows_of(place: Path) -> Series:
    """What must have been logged: the twin of `numbers_of`, from the file itself."""
    series: Series = {}
    for line in (place / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        step = row.pop("event")
        for name, value in row.items():
            if name in ("confusion", "crc32") or value is None:
                continue
            for key, number in (
                [(f"{name}/{i}", v) for i, v in enumerate(value)] if name.startswith("cluster_") else [(name, value)]
            ):
                if number is not None:
                    series.setdefault(key, []).append((step, number))
    return series


def accumulated(place: Path) -> Any:
    """What TensorBoard itself reads from the event files."""
    reading = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(place / "trackers/tensorboard"), size_guidance={"scalars": 0})
    return found.Reload()


def read_tensorboard(place: Path) -> Series:
    found = accumulated(place)
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def read_mlflow(place: Path) -> Series:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=mlflow_store(place))
    (run,) = mlflow_runs(client)
    return {
        name: sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name))
        for name in run.data.metrics
    }


def mlflow_store(place: Path) -> str:
    (store,) = place.glob("trackers/mlflow/store-*")
    return store.as_uri()


def mlflow_runs(client: Any) -> list[Any]:
    return [run for e in client.search_experiments() for run in client.search_runs([e.experiment_id])]


def read_wandb(place: Path) -> Series:
    series: Series = {}
    for record in wandb_records(place):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = record.history.step.num
            for name, value in items.items():
                if not name.startswith("_"):
                    series.setdefault(name, []).append((step, value))
    return series


def wandb_records(place: Path) -> list[Any]:
    """Return the records of the one offline run, once W&B's own process has written the last of them."""
    read = importlib.import_module("wandb.proto.wandb_internal_pb2").Record.FromString
    for _ in range(200):
        files = list(place.glob("trackers/wandb/offline-run-*/*.wandb"))
        if len(files) == 1:
            records = [read(content) for content in leveldb_records(files[0].read_bytes())]
            if records and records[-1].WhichOneof("record_type") == "exit":
                return records
        time.sleep(0.1)
    raise AssertionError(f"no whole run in {files}")


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """Read LevelDB's log format, which W&B's files have after a header of 7 bytes: records in blocks of 32 KiB."""
    assert content[:4] in (b":W&B", b"")
    at, parts = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        if at + 7 + length > len(content):  # it is being written
            return
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


READ: dict[str, Callable[[Path], Series]] = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
}


def logged(name: str, place: Path) -> Series:
    """What a tracker holds, without the summary."""
    return {key: values for key, values in READ[name](place).items() if not key.startswith("summary/")}


def approximately(series: Series) -> Any:
    """TensorBoard holds numbers in single precision."""
    return {key: [(step, pytest.approx(value, rel=1e-6)) for step, value in values] for key, values in series.items()}


@EACH
def test_every_row_is_logged(name: str, tmp_path: Path) -> None:
    of = experiment(name)
    assert [p.events_done for p in steps(of, tmp_path)] == [0, 1, 2, 3, 4]
    wanted = rows_of(tmp_path)
    assert [step for step, _ in wanted["train_loss"]] == [0, 1, 2, 3, 4]
    assert {"round", "virtual_time", "cluster_accuracy/0", "cluster_clients/1", "ari"} <= set(wanted)
    assert logged(name, tmp_path) == approximately(wanted)


def test_tensorboard_has_settings_and_summary(tmp_path: Path) -> None:
    HParamsPluginData = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2").HParamsPluginData

    of = experiment("tensorboard")
    list(steps(of, tmp_path))
    found = accumulated(tmp_path)
    content = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["local.lr"].number_value == 0.05
    assert hparams["method.name"].string_value == "ifca"
    assert set(hparams) == set(hyperparameters(of.settings))
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    (best,) = found.Scalars("summary/best_test_accuracy")
    assert (best.step, best.value) == (4, pytest.approx(summary["best_test_accuracy"]))


@pytest.mark.more
def test_mlflow_has_settings_and_summary(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    of = experiment("mlflow")
    list(steps(of, tmp_path))
    client = MlflowClient(tracking_uri=mlflow_store(tmp_path))
    (run,) = mlflow_runs(client)
    assert (run.info.run_name, run.info.status) == ("IFCA", "FINISHED")
    assert client.get_experiment(run.info.experiment_id).name == "tiny"
    assert run.data.params == {key: str(value) for key, value in hyperparameters(of.settings).items()}
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    assert run.data.metrics["summary/best_test_accuracy"] == summary["best_test_accuracy"]


def test_mlflow_has_the_summary_of_a_run_that_went_on(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    of = experiment("mlflow")
    list(steps(of, tmp_path))
    longer = Experiment(of.settings.model_copy(update={"rounds": 6}))
    list(steps(longer, tmp_path, resume=True))
    (run,) = mlflow_runs(MlflowClient(tracking_uri=mlflow_store(tmp_path)))
    assert run.data.metrics["summary/rounds"] == 6


def test_mlflow_logs_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    uri = (tmp_path / "shared").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    for i in range(2):
        list(steps(experiment("mlflow", lr=0.1 + i), tmp_path / f"run-{i}"))
    client = MlflowClient(tracking_uri=uri)
    assert {run.data.params["local.lr"] for run in mlflow_runs(client)} == {"0.1", "1.1"}
    assert {client.get_experiment(run.info.experiment_id).name for run in mlflow_runs(client)} == {"ours"}


@pytest.mark.more
def test_wandb_has_settings_and_summary(tmp_path: Path) -> None:
    of = experiment("wandb")
    list(steps(of, tmp_path))
    records = wandb_records(tmp_path)
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name) == ("tiny", "IFCA")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {key: config.get(key) for key in hyperparameters(of.settings)} == hyperparameters(of.settings)
    summary = json.loads((tmp_path / "summary.json").read_bytes())
    updates = [item for r in records if r.WhichOneof("record_type") == "summary" for item in r.summary.update]
    found = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in updates}
    assert found["summary/best_test_accuracy"] == summary["best_test_accuracy"]


@EACH
def test_a_stopped_run_goes_on_in_the_same_tracker_run(name: str, tmp_path: Path) -> None:
    of = experiment(name)
    carry_to(of, tmp_path, 2)
    assert [step for step, _ in logged(name, tmp_path)["train_loss"]] == [0, 1, 2]
    before = (tmp_path / "trackers" / name / "run.json").read_bytes() if name != "tensorboard" else b""
    carry_to(of, tmp_path, 99, resume=True)
    assert logged(name, tmp_path) == approximately(rows_of(tmp_path))
    if before:
        assert (tmp_path / "trackers" / name / "run.json").read_bytes() == before


@EACH
def test_rows_that_are_trained_again_are_not_doubled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill: the tracker is ahead of the last checkpoint."""
    of = experiment(name)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpointer, "save", lambda self: None)
        carry_to(of, tmp_path, 3)
    assert logged(name, tmp_path)["train_loss"][-1][0] == 3
    time.sleep(1.1 * (name == "tensorboard"))  # it reads files by name, and those of one second are in no order
    carry_to(of, tmp_path, 99, resume=True)
    # Wall times are those of the first time, since these rows were not logged again.
    assert untimed(logged(name, tmp_path)) == approximately(untimed(rows_of(tmp_path)))


def test_an_mlflow_that_cannot_be_asked_keeps_its_run_and_a_deleted_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient, MlflowException

    def unreachable(*asked: object, **more: object) -> None:
        raise MlflowException("API request failed with exception HTTPConnectionPool")

    of = experiment("mlflow")
    carry_to(of, tmp_path, 2)
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "update_run", unreachable)
        with pytest.raises(InputError, match=r"run\.trackers: mlflow cannot be opened \(API request failed"):
            carry_to(of, tmp_path, 3, resume=True)
    carry_to(of, tmp_path, 3, resume=True)
    client = MlflowClient(tracking_uri=mlflow_store(tmp_path))
    (first,) = mlflow_runs(client)
    client.delete_run(first.info.run_id)
    carry_to(of, tmp_path, 99, resume=True)
    (second,) = mlflow_runs(client)
    assert second.info.run_id != first.info.run_id
    assert logged("mlflow", tmp_path) == approximately(rows_of(tmp_path))


def untimed(series: Series) -> Series:
    assert [step for step, _ in series["wall_time"]] == [0, 1, 2, 3, 4]
    return {key: values for key, values in series.items() if key not in ("wall_time", "crc32")}


@EACH
def test_a_tracker_that_is_switched_on_later_gets_all_rows(name: str, tmp_path: Path) -> None:
    carry_to(experiment(), tmp_path, 2)
    assert not (tmp_path / "trackers").exists()
    carry_to(experiment(name), tmp_path, 3, resume=True)
    list(steps(experiment(name), tmp_path, resume=True))
    list(steps(experiment(name), tmp_path, resume=True))  # finished: nothing more is logged
    assert logged(name, tmp_path) == approximately(rows_of(tmp_path))
    assert all(len(values) == 1 for key, values in READ[name](tmp_path).items() if key.startswith("summary/"))


@pytest.mark.more
def test_a_replaced_run_begins_anew(tmp_path: Path) -> None:
    list(steps(experiment(*NAMES), tmp_path))
    list(steps(experiment(*NAMES, lr=0.5), tmp_path, overwrite=True))
    for name in NAMES:
        assert logged(name, tmp_path) == approximately(rows_of(tmp_path))
    list(steps(experiment(), tmp_path, overwrite=True))
    assert not (tmp_path / "trackers").exists()


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_a_missing_package_is_told_before_anything_is_written(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{name} needs the package {name}; run pip install '{name}[-a-z]*>=[\d.]+'$"):
        list(steps(experiment(name), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


class Failing:
    """A tracker whose disk is full from an event on."""

    logged = -1

    def __init__(self, event: int) -> None:
        self.event = event

    def log(self, event: int, numbers: object) -> None:
        if event >= self.event:
            raise OSError("no space left")

    def close(self, summary: object) -> None:
        raise OSError("no space left")


@pytest.mark.more
def test_a_tracker_that_fails_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(TRACKERS, "wandb", (require_wandb, lambda run: Failing(2)))
        told = carry_to(experiment("wandb", "mlflow"), tmp_path, 99)
    assert [line for line in told if "wandb failed and is skipped from here on (no space left)" in line]
    assert len(told) == 1
    assert RunFolder(tmp_path).is_finished
    assert logged("mlflow", tmp_path) == approximately(rows_of(tmp_path))
    carry_to(experiment("wandb"), tmp_path, 99, resume=True)
    assert logged("wandb", tmp_path) == approximately(rows_of(tmp_path))


@pytest.mark.more
def test_a_tracker_that_cannot_be_closed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS, "wandb", (require_wandb, lambda run: Failing(99)))
    with pytest.raises(RunError, match=r"could not be closed: wandb \(no space left\)"):
        carry_to(experiment("wandb", "mlflow"), tmp_path, 99)
    assert logged("mlflow", tmp_path) == approximately(rows_of(tmp_path))


def test_a_tracker_that_cannot_be_opened_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://here")
    with pytest.raises(InputError, match=r"run.trackers: mlflow cannot be opened \(.*nonsense"):
        list(steps(experiment("mlflow"), tmp_path))


@pytest.mark.parametrize(
    ("require", "variable", "off"),
    [(require_mlflow, "MLFLOW_DISABLE_TELEMETRY", "true"), (require_wandb, "WANDB_ERROR_REPORTING", "false")],
)
def test_what_packages_report_home_is_off_before_they_are_imported_unless_it_is_wanted(
    require: Callable[[], object], variable: str, off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(f"{require.__module__}.import_extra", lambda *_: seen.append(os.environ.get(variable)))
    monkeypatch.delenv(variable)
    require()
    monkeypatch.setenv(variable, "as the user says")
    require()
    assert seen == [off, "as the user says"]


def test_the_packages_are_there() -> None:
    """The tests above must not pass because nothing was opened."""
    assert all((require_tensorboard(), require_mlflow(), require_wandb()))
