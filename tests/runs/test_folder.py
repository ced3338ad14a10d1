"""The run folder: what is written is whole, and what is not a run's is left alone."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from atoll import Experiment, make_runs, run_events
from atoll.privacy.ledger import LEDGER, SEAL
from atoll.runs.fingerprint import digest
from atoll.runs.run_files import CLIENTS, CLUSTERINGS, FILES, HAPPENED, MEASURED, REFUSED, STRIKES
from atoll.runs.run_folder import RunFolder
from atoll.runs.run_folders import name_folders, prepare_folders
from atoll.support.errors import InputError, RunError
from atoll.support.files import write_atomically

CHANGES = (
    *("rounds=3", "data.clients=6", "data.samples=8", "clustering.clusters=2", "method.fraction=0.5"),
    *("local.steps=1", "local.batch_size=4", "model.name=linear", "run.checkpoint_every=1"),
)


@dataclass(frozen=True)
class Made:
    """An experiment and the folder that it was run into."""

    experiment: Experiment
    folder: RunFolder


def experiment(*changes: str) -> Experiment:
    return Experiment(make_runs({}, None, [*CHANGES, *changes])[0])


@pytest.fixture
def made(tmp_path: Path) -> Made:
    each = experiment()
    list(run_events(each, tmp_path / "run"))
    return Made(each, RunFolder(tmp_path / "run"))


def test_write_atomically_replaces_whole_files(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"one")
    write_atomically(tmp_path / "a", b"two")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"two"}


@pytest.mark.parametrize("place", ["missing/a", "file/a", "folder", "x" * 300])
def test_write_atomically_tells_why_it_cannot(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*: "):
        write_atomically(tmp_path / place, b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_write_atomically_keeps_the_old_file_when_the_disk_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    write_atomically(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        write_atomically(tmp_path / "a", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_the_metrics_keep_whole_rows_when_the_disk_fills(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    before = made.folder.metrics.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        made.folder.append({"event": 7, "wall_time": 0.0})
    assert made.folder.metrics.read_bytes() == before


def test_nan_is_never_written(made: Made) -> None:
    with pytest.raises(ValueError, match="JSON"):
        made.folder.append({"event": 7, "wall_time": 0.0, "train_loss": float("nan")})


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the folder's files is the one that does not fit."""
    each = experiment()
    for count in range(4):
        left = [count]

        def fails(path: Path, content: bytes, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise RunError(f"cannot write {path}")
            path.write_bytes(content)

        for place in ("atoll.runs.run_folder", "atoll.schedules.schedule_files"):
            monkeypatch.setattr(f"{place}.write_atomically", fails)
        with pytest.raises(RunError, match="cannot write"):
            list(run_events(each, tmp_path / "run"))
        assert not (tmp_path / "run").exists()


def test_a_start_that_was_killed_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files but config.toml, which comes last, and a half-written one."""
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("atoll.runs.run_folder.as_toml", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            list(run_events(experiment(), folder.path))
    (folder.path / ".config.toml.part").write_text("seed =")
    assert folder.schedule.exists()
    folder.require_room()
    list(run_events(experiment(), folder.path))
    assert {path.name for path in folder.path.iterdir()} == {*FILES} - {
        HAPPENED,
        CLUSTERINGS,
        CLIENTS,
        STRIKES,
        REFUSED,
        MEASURED,
        LEDGER,
        SEAL,
    }


def test_overwriting_takes_only_what_is_the_runs(made: Made) -> None:
    mine = [made.folder.path / "notes.txt", made.folder.path / "checkpoint" / "best.safetensors"]
    for file in mine:
        file.write_text("mine")
    steps = run_events(made.experiment, made.folder.path, overwrite=True)
    next(steps)
    assert [file.read_text() for file in mine] == ["mine", "mine"]
    assert not made.folder.is_finished
    assert not list((made.folder.path / "checkpoint").glob("event-*"))
    steps.close()


def test_stopping_early_leaves_a_checkpoint_of_all_that_was_done(tmp_path: Path, made: Made) -> None:
    for progress in run_events(made.experiment, tmp_path / "early"):
        if progress.events_done == 3:
            break
    assert (tmp_path / "early" / "checkpoint" / "event-00000003.json").is_file()
    list(run_events(made.experiment, tmp_path / "early", resume=True))

    def rows(folder: Path) -> list[dict[str, Any]]:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) | {"wall_time": 0, "crc32": ""} for line in lines]

    assert rows(tmp_path / "early") == rows(made.folder.path)


def test_an_experiment_can_be_run_again(tmp_path: Path, made: Made) -> None:
    """The second run begins with the initial model, not with the first one's last."""
    list(run_events(made.experiment, tmp_path / "again"))
    losses = [[row["train_loss"] for row in folder.rows()] for folder in (made.folder, RunFolder(tmp_path / "again"))]
    assert losses[0] == losses[1]


def test_differing_settings_are_named(made: Made) -> None:
    made.folder.take_over(made.experiment.settings)
    changed = experiment("local.lr=0.5", "data.samples=9").settings
    with pytest.raises(InputError, match=r"data\.samples was 8, is now 9, local\.lr was 0\.05, is now 0\.5$"):
        made.folder.take_over(changed)
    (made.folder.path / "config.toml").write_text("name =")
    with pytest.raises(InputError, match=r"config\.toml cannot be read"):
        made.folder.take_over(changed)


def test_a_run_goes_on_where_atoll_has_got_more_settings_since(tmp_path: Path) -> None:
    def before_the_settings_came(folder: Path) -> None:
        config = folder / "config.toml"
        kept = [line for line in config.read_text().splitlines() if not line.startswith(("standardise", "select"))]
        config.write_text("\n".join(kept))

    def rows(folder: Path) -> list[dict[str, Any]]:
        return [row | {"wall_time": 0.0} for row in RunFolder(folder).rows()]

    list(run_events(experiment(), tmp_path / "whole"))
    run = run_events(experiment(), tmp_path / "half")
    next(run)
    run.close()
    before_the_settings_came(tmp_path / "half")
    list(run_events(experiment(), tmp_path / "half", resume=True))
    assert rows(tmp_path / "half") == rows(tmp_path / "whole")
    assert "standardise" in (tmp_path / "half" / "config.toml").read_text()

    before_the_settings_came(tmp_path / "half")
    with pytest.raises(InputError, match=r"with other settings: data\.standardise was unset, is now 'pool'$"):
        list(run_events(experiment("data.standardise=pool"), tmp_path / "half", resume=True))


def test_a_checkpoint_is_of_the_settings_that_are_not_at_their_defaults() -> None:
    default = digest(experiment().settings)
    assert digest(experiment("data.standardise=unit").settings) == default
    assert digest(experiment("data.standardise=pool").settings) != default
    assert digest(experiment("run.workers=2").settings) == default  # which may differ


def test_the_schedule_is_written_as_arrays(made: Made) -> None:
    events = made.experiment.method.schedule.events
    with np.load(made.folder.path / "schedule.npz", allow_pickle=False) as columns:
        assert columns["seconds"].tolist() == [event.seconds for event in events]
        ends = columns["cohort_offsets"]
        assert columns["cohort"][ends[1] : ends[2]].tolist() == events[1].cohort.tolist()
        mixes = json.loads(columns["mixes"].tobytes())
    assert mixes[0]["server"] == {"server": 0.0, "published": [[events[0].active[0], 1.0]]}


@pytest.mark.parametrize(
    ("labels", "slugs"),
    [
        (["FedCluster, M = 10", "FedAvg"], ["fedcluster-m-10", "fedavg"]),
        (["", ""], ["run-0", "run-1"]),
        (["..", "../../etc/passwd"], ["run-0", "etc-passwd"]),
        (["α = 0.5", "x" * 300], ["α-0.5", "x" * 100]),
    ],
)
def test_folders_are_named_after_labels(labels: list[str], slugs: list[str]) -> None:
    runs = make_runs({"runs": [{"label": label} for label in labels]})
    assert name_folders([Experiment(run) for run in runs]) == slugs


def test_folders_of_several_runs_need_room_each(tmp_path: Path) -> None:
    folders = prepare_folders(["a", "b"], tmp_path / "out", resume=False, overwrite=False)
    assert folders == [tmp_path / "out" / "a", tmp_path / "out" / "b"]
    assert not (tmp_path / "out").exists()
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds files other than"):
        prepare_folders(["a", "b"], tmp_path, resume=True, overwrite=False)
