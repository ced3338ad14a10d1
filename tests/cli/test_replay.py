"""`atoll run --schedule`: what happened elsewhere is run again; foreign files and wrong uses are one sentence."""

import json
import shutil
from pathlib import Path

import pytest

from atoll import Experiment, make_runs, read_experiment, run_events
from atoll.fleet.agreed.transport import Failure
from tests.cli.conftest import TINY, Command
from tests.cli.test_repeat import last_checkpoint, rows
from tests.fleets import open_sites, sending
from tests.memory_fleet import MemoryFleet

LIVE = TINY + "\n[run]\nexecutor = 'fleet'\ncheckpoint_every = 1\n"


@pytest.fixture
def live(folder: Path) -> Path:
    """The folder of a run on nodes in this process, of which one never answers."""
    (folder / "live.toml").write_text(LIVE)
    experiment = Experiment(make_runs(read_experiment(folder / "live.toml"))[0])
    faults = {"node-1": sending(lambda content: Failure("failed"))}
    for _ in run_events(
        experiment, folder / "live", fleet=MemoryFleet(open_sites(experiment, folder / "data"), faults)
    ):
        pass
    return folder / "live"


def models(run: Path) -> bytes:
    return last_checkpoint(run)[1]


def test_what_happened_is_run_again(atoll: Command, live: Path, folder: Path) -> None:
    happened = live / "happened.jsonl"
    assert any(json.loads(line).get("answered") for line in happened.read_text().splitlines())
    for name, words in {"a": (), "b": ("--set", "run.executor=cores", "--set", "run.workers=2")}.items():
        atoll("run", "live.toml", "--schedule", happened, "--out", name, *words).succeeded()
        assert models(folder / name) == models(live)
        assert [row["train_loss"] for row in rows(folder / name)] == [row["train_loss"] for row in rows(live)]
        assert [row["bytes_up"] for row in rows(folder / name)] == [row["bytes_up"] for row in rows(live)]
        assert rows(folder / name)[-1]["dropped"] == rows(live)[-1]["dropped"] > 0
    atoll("run", "live.toml", "--schedule", "a/schedule.npz", "--out", "c").succeeded()
    assert models(folder / "c") == models(live)
    assert len(json.loads((folder / "a" / "environment.json").read_bytes())["replayed"]) == 64
    assert not (folder / "a" / "happened.jsonl").exists()
    atoll("run", "tiny.toml", "--out", "plain").succeeded()
    assert models(folder / "plain") != models(live)


def test_faults_of_the_settings_are_not_added(atoll: Command, folder: Path) -> None:
    words = ("run", "tiny.toml", "--set", "faults.dropout=0.4", "--set", "seed=3")
    atoll(*words, "--out", "a").succeeded()
    assert rows(folder / "a")[-1]["dropped"] > 0
    atoll(*words, "--schedule", "a/schedule.npz", "--out", "b").succeeded()
    assert models(folder / "b") == models(folder / "a")
    assert rows(folder / "b") == rows(folder / "a")


def test_a_replay_goes_on(atoll: Command, live: Path, folder: Path) -> None:
    happened = live / "happened.jsonl"
    words = ("run", "live.toml", "--schedule", happened, "--out", "a")
    atoll(*words).succeeded()
    run = folder / "a"
    (run / "summary.json").unlink()
    for file in (run / "checkpoint").glob("event-00000004*"):
        file.unlink()
    assert (
        "was run with a --schedule"
        in atoll("run", "live.toml", "--set", "run.executor=serial", "--out", "a", "--resume").refused()
    )
    (folder / "half.jsonl").write_text("".join(happened.read_text().splitlines(keepends=True)[:-1]))
    other = ("run", "live.toml", "--schedule", "half.jsonl", "--out", "a", "--resume")
    assert "was run with another --schedule" in atoll(*other).refused()
    atoll(*words, "--resume").succeeded()
    assert models(run) == models(live)
    assert [row["event"] for row in rows(run)] == [0, 2, 4]


def test_what_happened_so_far(atoll: Command, live: Path, folder: Path) -> None:
    lines = (live / "happened.jsonl").read_text().splitlines(keepends=True)
    (folder / "half.jsonl").write_text("".join(lines[:3]) + lines[3][:50])
    atoll("run", "live.toml", "--schedule", "half.jsonl", "--out", "a").succeeded()
    assert [row["event"] for row in rows(folder / "a")] == [0, 2]
    assert models(folder / "a") == max((live / "checkpoint").glob("event-00000002.safetensors")).read_bytes()


def test_wrong_uses(atoll: Command, live: Path, folder: Path) -> None:
    happened = live / "happened.jsonl"
    told = atoll("run", "live.toml").refused()
    assert told.startswith("run.executor = 'fleet': needs a fleet; use `atoll fleet up`")
    assert not (folder / "runs").exists()
    told = atoll("run", "live.toml", "--set", "run.executor=serial", "--out", "live", "--resume").refused()
    assert "was run on a fleet, and can only continue on one" in told
    told = atoll("run", "tiny.toml", "--set", "clustering.clusters=3", "--schedule", happened).refused()
    assert told == "--schedule: the schedule has 2 clusters, the experiment 3; give one from a run of this experiment"
    told = atoll("run", "tiny.toml", "--schedule", "metrics.jsonl").refused()
    assert told == "--schedule metrics.jsonl: cannot be read (No such file or directory)"
    told = atoll("run", "tiny.toml", "--schedule", live / "metrics.jsonl").refused()
    assert told.endswith("metrics.jsonl: line 1 is not an event of a run (format: field required)")
    told = atoll("run", "tiny.toml", "--schedule", live).refused()
    assert told == f"--schedule {live}: cannot be read (Is a directory)"
    (folder / "two.toml").write_text(TINY + "\n[[runs]]\nlabel = 'a'\n[[runs]]\nlabel = 'b'\n")
    told = atoll("run", "two.toml", "--schedule", happened).refused()
    assert told == "--schedule: is for one run, but the experiment has 2; choose one with --only"
    shutil.copy(happened, "other.txt")
    atoll("run", "two.toml", "--only", "a", "--schedule", "other.txt", "--out", "a").succeeded()
