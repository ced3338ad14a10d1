"""A full or read-only disk: exit code 1, one sentence, no half-written file. The suite may run as root, which
permission bits do not stop, so file systems are mounted where that is possible and file sizes limited where not."""

import errno
import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.cli.common import err
from atoll.cli.teller import Teller
from tests.cli.conftest import Command
from tests.cli.test_plan import FILE, PLAN

Mount = Callable[[str], Path]


@pytest.fixture
def mount(folder: Path) -> Iterator[Mount]:
    """Mount an empty file system with these options; skip where that is not allowed."""
    place = folder / "disk"
    place.mkdir()
    mounted = False

    def do(options: str) -> Path:
        nonlocal mounted
        command = ["mount", "-t", "tmpfs", "-o", options, "atoll-test", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
        mounted = True
        return place

    yield do
    if mounted:
        subprocess.run(["umount", str(place)], check=True)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_disk_full_from_the_start(atoll: Command, mount: Mount) -> None:
    disk = mount("size=4k")
    (disk / "ballast").write_bytes(b"x" * 4096)
    assert "No space left on device" in atoll("run", "tiny.toml", "--out", disk / "run").refused(code=1)
    assert files(disk) == ["ballast"]
    assert not (disk / "run").exists()


def test_disk_full_in_the_middle(atoll: Command, mount: Mount) -> None:
    disk = mount("size=256k")  # room for the folder and one checkpoint of two models of 60 kB, not for two
    words = ("run", "tiny.toml", "--out", disk / "run", "--set", "run.checkpoint_every=1", "--set", "rounds=5")
    sentence = atoll(*words).refused(code=1)
    assert sentence.endswith("No space left on device; free some space and give the same command with --resume")
    assert "checkpoint" in sentence
    kept = [json.loads(line) for line in (disk / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["event"] for row in kept] == [0, 2, 4]
    assert not [name for name in files(disk) if name.endswith((".part", "summary.json"))]
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    atoll(*words, "--resume").succeeded()
    atoll(*words[:3], "whole", *words[4:]).succeeded()
    whole = [json.loads(line) for line in Path("whole/metrics.jsonl").read_text().splitlines()]
    resumed = [json.loads(line) for line in (disk / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["train_loss"] for row in resumed] == [row["train_loss"] for row in whole]


@pytest.mark.more
def test_read_only_disk(atoll: Command, mount: Mount) -> None:
    disk = mount("size=1m")
    atoll("run", "tiny.toml", "--out", disk / "run").succeeded()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    before = files(disk)
    assert "Read-only" in atoll("run", "tiny.toml", "--out", disk / "new").refused(code=1)
    told = atoll("run", "tiny.toml", "--out", disk / "run", "--overwrite").refused(code=1)
    assert told == f"cannot write to the folder {disk / 'run'}: Read-only file system"
    assert "Read-only" in atoll("run", "quickstart", "--out", disk / "several").refused(code=1)
    done = atoll("cluster", "tiny.toml", "--plot", disk / "plot")
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert "Read-only" in done.err
    assert "Read-only" in atoll("report", disk / "run").refused(code=1)
    assert files(disk) == before
    # What is finished can still be read.
    assert "finite" not in atoll("report", disk / "run", "--out", "report").succeeded()


def test_a_sweep_that_cannot_be_written_is_not_checked(
    atoll: Command, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []
    monkeypatch.setattr("atoll.cli.sweep_action.check_members", checked.append)
    told = atoll("sweep", "tiny.toml", "--over", "seed=0..1", "--out", mount("ro") / "sweep").refused(code=1)
    assert told.startswith("cannot make the folder ")
    assert not checked


def test_a_plan_that_cannot_be_written_is_not_scored(atoll: Command, mount: Mount, folder: Path) -> None:
    (folder / "site.toml").write_text(FILE)
    told = atoll(*PLAN, "--out", mount("ro") / "plan").refused(code=1)
    assert told == f"cannot make the folder {folder / 'disk' / 'plan'}: Read-only file system"


@pytest.mark.more
def test_file_size_limit(folder: Path) -> None:
    """A quota met in the middle of a row: the file keeps its whole rows."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    command = [sys.executable, "-m", "atoll", "run", "tiny.toml", "--set", "run.executor=serial"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, preexec_fn=limit, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: cannot write runs/tiny/checkpoint/event-")
    assert len(done.stderr.splitlines()) == 1
    rows = (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["event"] for row in rows] == [0, 2, 4]
    assert files(folder / "runs" / "tiny") == ["config.toml", "environment.json", "metrics.jsonl", "schedule.npz"]


@pytest.mark.more
def test_a_console_without_room_changes_no_exit_code(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "atoll", "run", "absent.toml"]
        assert subprocess.run(words, cwd=folder, stderr=full, timeout=60).returncode == 2


class Full(io.StringIO):
    """A log on a disk that is full."""

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_node_or_server_goes_on_though_its_log_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    tell, log = Teller(err), io.StringIO()
    monkeypatch.setattr(sys, "stderr", Full())
    for _ in range(100):
        tell("a line as they have it")
    monkeypatch.setattr(sys, "stderr", log)
    tell("there is room again")
    assert log.getvalue() == "there is room again\n"  # and nothing has piled up


@pytest.mark.more
def test_output_that_cannot_be_written(folder: Path) -> None:
    command = f"{sys.executable} -m atoll recipes show quickstart"
    for target in ("> /dev/full", "| true"):
        line = f"set -o pipefail; {command} {target}"
        done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        if target == "> /dev/full":
            assert done.returncode == 1
            assert done.stderr == "error: the output: No space left on device\n"
