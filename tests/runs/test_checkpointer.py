"""After which events a run's checkpoints are written."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll import Experiment, init, make_runs
from atoll.runs.checkpointer import Checkpointer
from atoll.runs.fingerprint import Fingerprint
from atoll.runs.rows import Recorder
from atoll.runs.run_folder import RunFolder


@pytest.mark.parametrize(
    ("changes", "minutes", "wanted"),
    [
        (["run.checkpoint_every=3"], 0.0, [3, 6, 8]),
        (["run.checkpoint_every=", "run.checkpoint_minutes=10"], 4.0, [3, 6, 8]),
        (["run.checkpoint_every=", "run.checkpoint_minutes=10"], 5.0, [2, 4, 6, 8]),
        (["run.checkpoint_every=3", "run.checkpoint_minutes=10"], 5.0, [2, 3, 5, 6, 8]),
        (["run.checkpoint_every=", "run.checkpoint_minutes=10"], 0.0, [8]),
    ],
)
def test_checkpoints_come_after_so_many_rounds_or_minutes_and_the_last_event(
    changes: list[str], minutes: float, wanted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event takes so many minutes; one that was saved for its minutes begins them anew."""
    table = {"rounds": 8, "data": {"clients": 4, "samples": 8}, "model": {"name": "linear"}}
    made = Experiment(make_runs(table, changes=["method.name=fedavg", *changes])[0])
    now, saved = [0.0], list[int]()
    monkeypatch.setattr("atoll.runs.checkpointer.time", SimpleNamespace(perf_counter=lambda: 60 * now[0]))
    (tmp_path / "checkpoint").mkdir()
    first = init(made.method, *made.training.initial_models())
    origin = Fingerprint(0, "settings", "serial")
    saver = Checkpointer(
        RunFolder(tmp_path), origin, Recorder(made), first, saved=lambda state: saved.append(state.events_done)
    )
    saver.save()  # nothing has happened yet
    for done in range(1, 9):
        now[0] += minutes
        assert saver.take(replace(first, events_done=done))
    saver.save()  # the last is there already
    assert saved == wanted
    assert len(list((tmp_path / "checkpoint").glob("*.json"))) == min(2, len(wanted))
