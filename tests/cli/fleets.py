"""Fleets of real processes on loopback, for tests; whatever happens, none is left."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from atoll.experiment.experiment import Experiment
from atoll.fleet.flower.superlink import free_port
from atoll.fleet.folder.configuration import FleetConfiguration
from atoll.fleet.folder.init import FleetPlan, init_fleet
from atoll.fleet.node.shards import write_shards

DIGITS = """
name = "digits"
rounds = {rounds}

[data]
clients = {clients}
samples = 40

[model]
name = "lr"

[local]
steps = 3
batch_size = 10

[clustering]
clusters = 2

[method]
fraction = 1.0

[run]
checkpoint_every = 1

[fleet]
wait_seconds = 120
deadline_seconds = {deadline}
"""


def write_digits(folder: Path, rounds: int = 2, clients: int = 2, deadline: float = 60) -> Path:
    """Write an experiment on digits for so many clients; return its file."""
    path = folder / "digits.toml"
    path.write_text(DIGITS.format(rounds=rounds, clients=clients, deadline=deadline))
    return path


def tensors_of(run: Path) -> bytes:
    """Return the last checkpoint's tensors."""
    return max((run / "checkpoint").glob("*.safetensors"), key=lambda path: path.name).read_bytes()


@dataclass
class Machines:
    """A fleet's server and nodes, each a process as its owner would start it."""

    folder: Path
    file: Path
    words: tuple[str, ...]
    configuration: FleetConfiguration
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_server(self, *words: str) -> None:
        """Start the server, or start it again with ``--resume``."""
        folder = self.configuration.folder
        self._start("server", "server", "--config", str(folder), "--out", str(self.folder / "run"), *words)

    def start_node(self, number: int) -> None:
        """Start a node, or start it again."""
        place = self.configuration.folder / "nodes" / f"node-{number}"
        data = self.folder / "data" / f"client-{number}"
        self._start(f"node-{number}", "node", "--config", str(place), "--data", str(data), "--client", str(number))

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        self.children[name].kill()
        self.children[name].wait()

    def said(self, name: str) -> str:
        """Return all that a process has printed."""
        return (self.folder / f"{name}.log").read_text()

    def wait_for_rows(self, rows: int, seconds: float = 120) -> None:
        """Wait until the run has so many rows of metrics."""
        wait_until(lambda: self.rows() >= rows, seconds, lambda: self.said("server"))

    def rows(self) -> int:
        """Return how many rows of metrics the run has."""
        path = self.folder / "run" / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def finish(self, seconds: float = 240) -> str:
        """Wait for the server's end; return what it printed."""
        assert self.children["server"].wait(timeout=seconds) == 0, self.said("server")
        return self.said("server")

    def _program(self, name: str) -> list[str]:
        """Return what runs as this process, in the place of the command `atoll`."""
        return [sys.executable, "-m", "atoll"]

    def _start(self, name: str, command: str, *options: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            words = [*self._program(name), "fleet", command, str(self.file), *self.words, *options]
            self.children[name] = self._spawn(name, words, log)

    def _spawn(self, name: str, words: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start a process."""
        return subprocess.Popen(
            words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


@contextlib.contextmanager
def machines(experiment: Experiment, file: Path, nodes: int, *words: str) -> Iterator[Machines]:
    """Make a fleet's folder and data beside the experiment's file; in the end kill what still runs of it."""
    folder = file.parent
    plan = FleetPlan(nodes, "127.0.0.1", listen="127.0.0.1", port=free_port())
    found = Machines(folder, file, words, init_fleet(folder / "fleet", plan))
    write_shards(experiment, folder / "data")
    try:
        yield found
    finally:
        for child in found.children.values():
            child.kill()  # the superlink ends with the server, whose end of the pipe is closed
            child.wait()


def wait_until(is_so: Callable[[], bool], seconds: float, told: Callable[[], str] = str) -> None:
    """Wait until something is so; fail after so many seconds."""
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, told()
        time.sleep(0.1)
