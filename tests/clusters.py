"""Ray clusters of several nodes on one machine, and a trainer that gets into trouble on them."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from atoll import LocalRule, Population, Trainer
from atoll.local.rule import momentum
from atoll.local.task import ClientTask, ClientUpdate
from tests.problems import linear_module

NODE = "ATOLL_TEST_NODE"
"""The number of the node, in the environment of its processes."""

RULE = LocalRule(momentum, lr=0.05, steps=3, batch_size=4)


@dataclass(frozen=True)
class Trouble:
    """What befalls the process that trains a client, or its node.

    Attributes:
        folder: where each time leaves a file.
        what: what it does.
        times: how often, at most.
        node: the only node that it does it on; None for any.
    """

    folder: Path
    what: Literal["kill", "kill node", "fail"]
    times: int = 1
    node: str | None = None

    def __call__(self) -> None:
        if self.node is not None and os.environ.get(NODE) != self.node:
            return
        self.folder.mkdir(exist_ok=True)
        if len(list(self.folder.iterdir())) >= self.times:
            return
        (self.folder / f"{time.monotonic_ns()}").touch()
        if self.what == "fail":
            raise ValueError("no such thing")
        os.kill(os.getppid() if self.what == "kill node" else os.getpid(), signal.SIGKILL)
        time.sleep(30)  # a node's processes end a little after it

    @property
    def happened(self) -> int:
        return len(list(self.folder.glob("*")))


class Troubled(Trainer):
    """Does something else first where a client's number says so."""

    def __init__(self, trouble: dict[int, Trouble], population: Population, seed: int = 5) -> None:
        super().__init__(linear_module(), population, RULE, seed)
        self.trouble = trouble

    def train(self, task: ClientTask) -> ClientUpdate:
        if task.client in self.trouble:
            self.trouble[task.client]()
        return super().train(task)


@dataclass
class Nodes:
    """The nodes of a cluster, each a process that holds its own.

    Attributes:
        port: the head's.
        processes: one a node, the head first.
        folders: their temporary files.
    """

    port: int
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """host:port of the head, with the address that Ray gives this machine."""
        found = re.search(r"Local node IP: (\S+)", _plain(Path(self.folders[0]) / "said"))
        assert found
        return f"{found[1]}:{self.port}"

    def add(self, cores: int, gpus: int = 0) -> None:
        """Start a node that says it has so many cores and GPUs; the first is the head."""
        folder = tempfile.mkdtemp(prefix="atoll-", dir="/tmp")
        head = ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        how = [f"--address={self.address}"] if self.processes else head
        command = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "start", "--block", *how]
        command += [f"--num-cpus={cores}", f"--num-gpus={gpus}", "--node-ip-address=127.0.0.1"]
        command += [f"--object-store-memory={100 * 2**20}"]
        with (Path(folder) / "said").open("wb") as said:
            process = subprocess.Popen(
                [*command, "--disable-usage-stats"],
                env=os.environ | {NODE: str(len(self.processes))},
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        self.folders.append(folder)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def nodes(*cores: int, gpus: int = 0) -> Iterator[Nodes]:
    """Start a cluster of nodes with so many cores and GPUs, the head first; the environment must hold a token."""
    cluster = Nodes(free_port())
    try:
        for count in cores:
            cluster.add(count, gpus)
            wait_for(cluster, len(cluster.processes))
        yield cluster
    finally:
        cluster.close()


def wait_for(cluster: Nodes, count: int) -> None:
    """Wait until the head listens and the last node's processes are up."""
    said = Path(cluster.folders[count - 1]) / "said"
    until = time.monotonic() + 60
    while "Ray runtime started" not in _plain(said):
        assert cluster.processes[count - 1].poll() is None, said.read_text()
        assert time.monotonic() < until, said.read_text()
        time.sleep(0.1)


def _plain(said: Path) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", said.read_text())


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("", 0))
        return int(unused.getsockname()[1])
