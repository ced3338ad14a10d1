"""The page's Slurm job with a Ray cluster, with stand-ins for Slurm's commands and Ray's nodes as processes."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.pages import ROOT, shell, write_files

NODES = ("n1", "n2", "n3")
ALONE = "atoll run quickstart --only FedAvg --out alone --set run.executor=serial --quiet"

SCONTROL = """
import sys

assert sys.argv[1:] == ["show", "hostnames", "n[1-3]"], sys.argv
print("n1\\nn2\\nn3")
"""

# One process a task, as many as the options say, on the nodes that they leave; a job's end ends all of them.
SRUN = """
import argparse, os, subprocess, sys

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--overlap", action="store_true", required=True)
for name in ("--nodes", "--ntasks", "--cpus-per-task"):
    parser.add_argument(name, type=int, required=True)
where = parser.add_mutually_exclusive_group(required=True)
where.add_argument("--nodelist")
where.add_argument("--exclude")
parser.add_argument("command", nargs=argparse.REMAINDER)
given = parser.parse_args()
names = [name for name in NODES if (name == given.nodelist if given.nodelist else name != given.exclude)]
assert len(names) == given.nodes == given.ntasks, (names, given)
assert given.cpus_per_task == int(os.environ["SLURM_CPUS_PER_TASK"]), given
with open("steps", "a") as steps:
    steps.writelines(f"{name} {' '.join(given.command[:2])}\\n" for name in names)
tasks = [subprocess.Popen(given.command, env={**os.environ, "SLURMD_NODENAME": name}) for name in names]
sys.exit(max(task.wait() for task in tasks))
"""

# The command itself, more patient with workers that start slowly, as on a busy machine.
ATOLL = """
import sys
from functools import partial

from atoll.cli import main
from atoll.executors.ray.ray_executor import Ray
from atoll.experiment import executor_choice

executor_choice.Ray = partial(Ray, patience=300.0)
sys.exit(main())
"""


@pytest.fixture
def temporary() -> Iterator[str]:
    """Give a folder for Ray's files, with a path short enough for its sockets."""
    made = tempfile.mkdtemp(prefix="atoll-", dir="/tmp")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
@pytest.mark.skipif(not shutil.which("openssl") or not Path("/proc").exists(), reason="needs Linux and openssl")
def test_the_ray_job_of_the_page_stops_continues_and_gives_the_bits_of_serial(folder: Path, temporary: str) -> None:
    write_files(ROOT / "docs/sweeps.md", folder)
    for name, text in {"srun": SRUN.replace("NODES", repr(NODES)), "scontrol": SCONTROL, "atoll": ATOLL}.items():
        (folder / name).write_text(f"#!{sys.executable}\n{text}")
        (folder / name).chmod(0o755)
    rows = folder / "runs/job/metrics.jsonl"
    stopped = carry_out(folder, temporary, until=lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 3)
    assert stopped == 143, "as after any SIGTERM: a checkpoint was written"
    assert not (folder / "runs/job/summary.json").exists()
    assert nodes_in(folder) > 1
    before = rows.read_bytes().splitlines()
    assert carry_out(folder, temporary) == 0
    assert nodes_in(folder) > 1, "a machine with much else to do may be too slow to start the third: Ray waits for 30 s"
    assert rows.read_bytes().splitlines()[: len(before) - 1] == before[:-1], "continued, not begun again"
    steps = (folder / "steps").read_text().splitlines()
    assert sorted(steps) == sorted(2 * ["n1 hostname --ip-address", *(f"{name} ray start" for name in NODES)])
    shell(ALONE, folder)
    ends = [sorted((folder / out / "checkpoint").glob("*.safetensors"))[-1] for out in ("runs/job", "alone")]
    assert ends[0].name == ends[1].name
    assert ends[0].read_bytes() == ends[1].read_bytes()


def carry_out(folder: Path, temporary: str, until: Callable[[], bool] = lambda: False) -> int:
    """Run the batch script as Slurm would, with SIGTERM to it once `until` holds; then end what the job left."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_JOB_NUM_NODES": str(len(NODES)),
        "SLURM_CPUS_PER_TASK": "1",
        "RAY_TMPDIR": temporary,
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(100 * 2**20),
    }
    with (folder / "said").open("wb") as said:
        job = subprocess.Popen(
            ["bash", "ray.sbatch"], cwd=folder, env=environment, stdout=said, stderr=said, start_new_session=True
        )
    try:
        end = time.monotonic() + 800
        while job.poll() is None and not until() and time.monotonic() < end:
            time.sleep(0.05)
        job.terminate()
        return job.wait(120)
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in processes_with(temporary):
                with suppress(ProcessLookupError):
                    os.kill(process, sign)
            wait_for(lambda: not processes_with(temporary), 5)


def nodes_in(folder: Path) -> int:
    """Return how many of Ray's nodes the last job started."""
    return (folder / "said").read_text().count("Ray runtime started.")


def processes_with(temporary: str) -> list[int]:
    """Return the job's processes: those whose environment has its folder of Ray's files."""
    return [
        int(found.parent.name)
        for found in Path("/proc").glob("[0-9]*/environ")
        if f"RAY_TMPDIR={temporary}".encode() in read(found) and int(found.parent.name) != os.getpid()
    ]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # ended meanwhile
        return b""


def wait_for(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)
