"""`atoll run --schedule`: what happened elsewhere is run again; foreign files and wrong uses are one sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from atoll import Experiment, make_runs, read_experiment, run_events
from atoll.fleet.agreed.transport import Failure
from atoll.support.files import line_as_bytes
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


def without_checksum(table: dict[str, Any]) -> dict[str, Any]:
    table.pop("crc32", None)
    return table


def models(run: Path) -> bytes:
    return last_checkpoint(run)[1]


@pytest.mark.more
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


def test_one_command_says_that_a_run_repeats_or_where_it_first_differs(
    atoll: Command, live: Path, folder: Path
) -> None:
    told = atoll("verify", "live").succeeded().splitlines()
    assert told == ["live: 4 events and 3 rows, run again", "equal"]
    (check,) = json.loads(atoll("verify", "live", "--json").succeeded())
    assert check["holds"]
    assert check["first_difference"] == ""
    happened = live / "happened.jsonl"
    lines = [json.loads(line, object_hook=without_checksum) for line in happened.read_text().splitlines()]
    lines[2]["answered"] = [[1 - answer for answer in answers] for answers in lines[2]["answered"]]
    happened.write_bytes(b"".join(map(line_as_bytes, lines)))
    done = atoll("verify", "live")
    assert done.code == 1
    assert done.out.splitlines()[1].startswith("after event 2, train_loss: ")
    (live / "metrics.jsonl").write_text("".join((live / "metrics.jsonl").read_text().splitlines(keepends=True)[:1]))
    done = atoll("verify", "live")
    assert done.code == 1
    assert done.out.splitlines()[1].startswith("after event 4, a model's numbers: ")


def test_an_unfinished_run_is_compared_up_to_its_last_checkpoint(atoll: Command, live: Path) -> None:
    for file in (live / "summary.json", *(live / "checkpoint").glob("event-00000004*")):
        file.unlink()
    assert atoll("verify", "live").succeeded().splitlines() == ["live: 2 events and 2 rows, run again", "equal"]
    shutil.rmtree(live / "checkpoint")
    assert atoll("verify", "live").refused() == "live: it has no checkpoint yet, so there is no model"
    assert atoll("verify", "nowhere").refused() == "nowhere does not exist"


PRIVATE = [word for each in ("trust=server", "noise=1.0", "clip=1.0") for word in ("--set", f"privacy.{each}")]


DRIFTING = [
    *("--set", "drift.kind=partition", "--set", "drift.rounds=[1]"),
    *("--set", "method.name=feddrift", "--set", "method.clusters=2", "--set", "method.fraction="),
]


@pytest.mark.parametrize("words", [["--set", "faults.dropout=0.4"], PRIVATE, DRIFTING])
def test_any_run_repeats(atoll: Command, folder: Path, words: list[str]) -> None:
    atoll("run", "tiny.toml", "--out", "plain", *words).succeeded()
    assert atoll("verify", "plain").succeeded().splitlines()[-1] == "equal"


def test_noise_of_a_fleet_cannot_be_drawn_again(atoll: Command, live: Path) -> None:
    config = live / "config.toml"
    config.write_text(config.read_text().replace('trust = "none"', 'trust = "server"\nnoise = 1.0\nclip = 1.0'))
    told = atoll("verify", "live").refused()
    assert told == "live: cannot be carried out again, since its noise for privacy came from the system"


def test_events_in_another_format_are_refused_before_anything_runs(atoll: Command, live: Path) -> None:
    happened = live / "happened.jsonl"
    head, *lines = happened.read_text().splitlines(keepends=True)
    head = line_as_bytes(json.loads(head.replace('"format": 2', '"format": 1'), object_hook=without_checksum)).decode()
    happened.write_text(head + "".join(lines))
    told = atoll("verify", "live").refused()
    assert told.endswith("line 1 is damaged (its format is 1, but this version of Atoll reads 2)")


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
    assert told == "--schedule: the experiment has 2 runs (a; b); choose one with --only"
    shutil.copy(happened, "other.txt")
    atoll("run", "two.toml", "--only", "a", "--schedule", "other.txt", "--out", "a").succeeded()
