"""The runbook's cases happen to a fleet of real processes, and its commands, as they stand, bring it back."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from atoll.fleet.flower.superlink import free_port
from tests.cli.conftest import Command
from tests.cli.fleets import wait_until
from tests.cli.pages import ROOT, blocks, shell
from tests.cli.test_disk import Mount, mount

__all__ = ["mount"]

pytest.importorskip("flwr")

PAGE = ROOT / "docs" / "runbook.md"
ROUNDS = 30
SERVER = "atoll fleet server digits.toml --config fleet --out runs/digits"
NODE = "atoll fleet node digits.toml --config node-{0}/node.toml --data shares/client-{0}"
CASES = {
    "Before": ["server, every hour"],
    "A node was stolen": ["server", "node 1"],
    "A disk is full": ["server"],
    "A clock is wrong": ["node 1"],
    "The superlink was stolen": ["server", "node 1", "server, then"],
    "The server is lost for good": ["the new server"],
    "The authority ends": ["server", "node 1", "server, then"],
}


def test_every_case_has_a_test() -> None:
    titles = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    assert {title: [block.title for block in blocks(PAGE, under=title)] for title in titles} == CASES
    source = Path(__file__).read_text()
    for title, machines in CASES.items():
        assert all(f'do("{title}", "{machine}")' in source for machine in machines), title


class Place:
    """A folder with a fleet's server and its two nodes, all on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        text = (ROOT / "examples" / "digits.toml").read_text().replace("rounds = 10", f"rounds = {ROUNDS}")
        (folder / "digits.toml").write_text(text + "\n[run]\ncheckpoint_every = 1\n")
        self.run("atoll data split digits.toml --out shares")
        self.run("atoll fleet init fleet --nodes 2 --host fleet.example.org")
        for number in range(2):
            shutil.copytree(folder / "fleet" / "nodes" / f"node-{number}", folder / f"node-{number}")

    def do(self, title: str, machine: str) -> None:
        """Carry out the commands that the page has for this machine."""
        (block,) = (block for block in blocks(PAGE, under=title) if block.title == machine)
        for line in block.text.splitlines():
            self.run(line)

    def run(self, line: str, program: str = "-m atoll") -> None:
        """Carry out a line; a server or node goes on in the background, in the place of the one before."""
        line = line.replace("fleet.example.org", f"127.0.0.1 --listen 127.0.0.1 --port {self.port}")
        found = re.match(r"atoll fleet (server|node) .*?(?:client-(\d))?$", line)
        if found is None:
            shell(line, self.folder)
            return
        name = "server" if found[1] == "server" else f"node-{found[2]}"
        self.kill(name)
        words = [sys.executable, *program.split(), *line.split()[1:]]
        with open(self.folder / f"{name}.log", "wb") as log:
            self.children[name] = subprocess.Popen(
                words,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},  # for another clock
            )

    def kill(self, name: str) -> None:
        if (child := self.children.pop(name, None)) is not None:
            child.kill()
            child.wait()

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Let a process stand still, so that the run does not end meanwhile."""
        os.kill(self.children[name].pid, signal.SIGSTOP)
        yield
        os.kill(self.children[name].pid, signal.SIGCONT)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, text: str) -> None:
        """Wait until a process has said something."""
        wait_until(lambda: re.search(text, self.said(name)) is not None, 120, lambda: self.said(name))

    def ended(self, name: str) -> tuple[int, str]:
        """Wait until a process has ended; return its exit code and last line."""
        return self.children[name].wait(timeout=120), self.said(name).strip().splitlines()[-1]

    def begin(self) -> None:
        """Start all, and wait for some events."""
        for line in (SERVER, NODE.format(0), NODE.format(1)):
            self.run(line)
        self.wait_for("server", "event 3 of")

    def finish(self, atoll: Command) -> None:
        """Wait for the run's end, which is that of its replay."""
        assert self.ended("server") == (0, "Results: runs/digits")
        assert atoll("verify", "runs/digits").succeeded().splitlines()[-1] == "equal"


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    found = Place(folder)
    try:
        yield found
    finally:
        for name in list(found.children):
            found.kill(name)


pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_a_node_was_stolen(place: Place, atoll: Command) -> None:
    place.begin()
    shutil.copytree(place.folder / "node-1", place.folder / "thief")
    with place.held("node-0"):
        place.do("A node was stolen", "server")
        code, last = place.ended("node-1")
        assert (code, last) == (1, f"error: 127.0.0.1:{place.port}: refuses node-1; its key is not registered there")
        place.run(NODE.format(1).replace("node-1/", "thief/"))
        assert place.ended("node-1")[1].endswith("refuses node-1; its key is not registered there")
        shutil.copy(place.folder / "fleet" / "nodes" / "node-1" / "node.key", place.folder / "node-1" / "node.key")
        place.do("A node was stolen", "node 1")
        place.wait_for("node-1", "connected")
    place.wait_for("node-1", "trained for event")
    place.finish(atoll)


@pytest.mark.slow
def test_a_disk_is_full(mount: Mount, place: Place, atoll: Command) -> None:
    disk = mount("size=32m")
    (place.folder / "runs").symlink_to(disk)
    place.begin()
    with suppress(OSError), open(disk / "ballast", "wb") as ballast:
        while True:
            ballast.write(bytes(4096))
    code, last = place.ended("server")
    assert (code, "No space left on device" in last) == (1, True), last
    (disk / "ballast").unlink()
    place.do("A disk is full", "server")
    place.finish(atoll)


@pytest.mark.slow
def test_a_clock_is_wrong(place: Place, atoll: Command) -> None:
    place.begin()
    with place.held("node-0"):
        place.run(NODE.format(1), "-m tests.chaos.victim --apart 3600")
        code, last = place.ended("node-1")
        assert (code, last) == (
            1,
            f"error: 127.0.0.1:{place.port}: this machine's clock is 60 minutes from its; set it",
        )
        place.do("A clock is wrong", "node 1")
        place.wait_for("node-1", "connected")
    place.wait_for("node-1", "trained for event")
    place.finish(atoll)


@pytest.mark.slow
def test_the_superlink_was_stolen(place: Place, atoll: Command) -> None:
    place.begin()
    place.kill("server")
    trainings = place.said("node-1").count("trained for event")
    place.port = free_port()
    place.do("The superlink was stolen", "server")
    for number in range(2):
        new = place.folder / f"node-{number}-new"
        shutil.copytree(place.folder / "fleet-2" / "nodes" / f"node-{number}", new)
    place.do("The superlink was stolen", "node 1")
    place.run("cp -r node-0/state node-0-new/")
    place.run(NODE.format(0).replace("node-0/", "node-0-new/"))
    place.do("The superlink was stolen", "server, then")
    place.wait_for("node-1", f"trainings so far: {trainings + 1}\n")
    place.finish(atoll)


@pytest.mark.slow
def test_the_authority_ends(place: Place, atoll: Command) -> None:
    place.begin()
    place.do("The authority ends", "server")
    for number in range(2):
        shutil.copy(place.folder / "ca-both.pem", place.folder / f"node-{number}")
    with place.held("node-0"):
        place.do("The authority ends", "node 1")
        place.wait_for("node-1", "connected")
    place.run("cp node-0/ca-both.pem node-0/ca.pem")
    place.run(NODE.format(0))
    place.wait_for("node-1", "trained for event")
    place.kill("server")
    place.do("The authority ends", "server, then")
    before = place.said("node-1").count("trained for event")
    wait_until(lambda: place.said("node-1").count("trained for event") > before, 120, lambda: place.said("node-1"))
    place.finish(atoll)


@pytest.mark.slow
def test_the_server_is_lost_for_good(place: Place, atoll: Command) -> None:
    place.begin()
    place.do("Before", "server, every hour")
    assert not (place.folder / "backup.tgz").stat().st_mode & 0o077, "it holds the server's keys"
    place.wait_for("server", "event 8 of")
    place.kill("server")
    for name in ("fleet", "runs"):
        shutil.rmtree(place.folder / name)
    (place.folder / "digits.toml").unlink()
    place.do("The server is lost for good", "the new server")
    place.finish(atoll)
    assert all(place.children[f"node-{number}"].poll() is None for number in range(2)), "nodes needed nothing"
    atoll("run", "digits.toml", "--out", "simulated").succeeded()
    last = [max((place.folder / run / "checkpoint").glob("*.safetensors")) for run in ("runs/digits", "simulated")]
    assert last[0].read_bytes() == last[1].read_bytes()
