"""What a fleet outlives: each kind of process killed again and again, and a network that is away for a minute."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.experiment.experiment import Experiment
from atoll.settings import experiment_file as config
from tests.cli.conftest import Command
from tests.cli.fleets import Machines, machines, tensors_of, wait_until
from tests.cli.pages import ROOT

pytest.importorskip("flwr")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

KILLS = 7
PULL = ("PullMessages", "PullObject", "ConfirmMessageReceived")
EXPERIMENT = """
name = "survives"
rounds = 45

[data]
clients = 2
samples = 700

[model]
name = "lr"

[local]
steps = 20
batch_size = 20
lr = 0.1

[method]
name = "fedavg"
fraction = 1.0

[run]
checkpoint_every = 1

[fleet]
wait_seconds = 120
deadline_seconds = 12
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Machines]:
    """A server and two nodes at work."""
    file = tmp_path / "survives.toml"
    file.write_text(EXPERIMENT)
    (settings,) = config.make_runs(config.read_experiment(str(file)))
    with machines(Experiment(settings), file, 2) as found:
        yield found


def begin(fleet: Machines) -> None:
    """Start all and wait until training has begun."""
    fleet.start_server()
    fleet.start_node(0)
    fleet.start_node(1)
    fleet.wait_for_rows(2)


def accuracy_of(run: Path) -> float:
    """Return the final accuracy of a run."""
    return float(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["test_accuracy"])


def require_like_simulated(fleet: Machines, atoll: Command) -> None:
    """The run came to its end, within a point of one without faults."""
    atoll("run", fleet.file, "--out", fleet.folder / "simulated").succeeded()
    apart = abs(accuracy_of(fleet.folder / "run") - accuracy_of(fleet.folder / "simulated"))
    assert apart <= 0.01, (accuracy_of(fleet.folder / "run"), accuracy_of(fleet.folder / "simulated"))


def superlink_of(server: int) -> int | None:
    """Return the number of the superlink that a server has started."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = re.search(r"^PPid:\t(\d+)", (path / "status").read_text(), re.MULTILINE)
            if parent and int(parent[1]) == server and b"flower.link" in (path / "cmdline").read_bytes():
                return int(path.name)
    return None


def test_a_node_that_is_killed_is_done_without_and_comes_back(fleet: Machines, atoll: Command) -> None:
    begin(fleet)
    for kill in range(KILLS):
        fleet.wait_for_rows(3 + 3 * kill)
        wait_until(lambda kill=kill: fleet.said("node-0").count(": connected\n") > kill, 60)  # type: ignore[misc]
        fleet.kill("node-0")
        began, rows = time.monotonic(), fleet.rows()
        fleet.start_node(0)
        fleet.wait_for_rows(rows + 1, 40)
        assert time.monotonic() - began < 30  # the deadline, and what a busy machine adds
    fleet.finish()
    assert fleet.said("node-0").count(": connected\n") == KILLS + 1
    require_like_simulated(fleet, atoll)


def test_a_server_that_is_killed_goes_on_to_the_same_bits(fleet: Machines, atoll: Command) -> None:
    fleet.file.write_text(EXPERIMENT.replace("deadline_seconds = 12", "deadline_seconds = 100"))  # nobody is to be late
    begin(fleet)
    for kill in range(KILLS):
        fleet.wait_for_rows(3 + 3 * kill)
        link = superlink_of(fleet.children["server"].pid)
        fleet.kill("server")
        wait_until(lambda link=link: not Path(f"/proc/{link}").exists(), 10)  # type: ignore[misc]
        fleet.start_server("--resume")
    fleet.finish()
    require_like_simulated(fleet, atoll)
    assert tensors_of(fleet.folder / "run") == tensors_of(fleet.folder / "simulated")


@pytest.mark.parametrize("nodes_die", [False, True])
def test_a_server_that_is_killed_in_its_pull_goes_on_to_the_same_bits(
    fleet: Machines, atoll: Command, nodes_die: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step: before and after replies are announced, brought and confirmed, also if a node dies with it."""
    short = EXPERIMENT.replace("rounds = 45", "rounds = 10").replace("deadline_seconds = 12", "deadline_seconds = 100")
    fleet.file.write_text(short)
    steps = [f"{step}:{when}" for step in PULL for when in ("before", "after")]
    ordinary = Machines._program
    monkeypatch.setattr(
        Machines, "_program",
        lambda self, name: [sys.executable, "-m", "tests.chaos.victim", "--die-call", steps.pop()]
        if name == "server" and steps else ordinary(self, name),
    )  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    fleet.start_server()
    fleet.start_node(0)
    fleet.start_node(1)
    for _ in range(len(steps) + 1):
        assert fleet.children["server"].wait(120) == -signal.SIGKILL, fleet.said("server")
        if nodes_die:
            fleet.kill("node-1")
            fleet.start_node(1)
        fleet.start_server("--resume")
    fleet.finish()
    require_like_simulated(fleet, atoll)
    assert tensors_of(fleet.folder / "run") == tensors_of(fleet.folder / "simulated")


def test_a_superlink_that_is_killed_is_started_again(fleet: Machines, atoll: Command) -> None:
    begin(fleet)
    for kill in range(KILLS):
        fleet.wait_for_rows(3 + 3 * kill)
        link = superlink_of(fleet.children["server"].pid)
        assert link is not None
        os.kill(link, signal.SIGKILL)
        wait_until(lambda link=link: superlink_of(fleet.children["server"].pid) not in (None, link), 30)  # type: ignore[misc]
    fleet.finish()
    require_like_simulated(fleet, atoll)


def test_a_network_that_is_away_for_a_minute(fleet: Machines, atoll: Command) -> None:
    with forwarding(fleet.configuration.port) as (port, cut):
        path = fleet.configuration.folder / "nodes" / "node-0" / "node.toml"
        path.write_text(path.read_text().replace(f":{fleet.configuration.port}", f":{port}"))
        begin(fleet)
        cut(True)
        began, rows = time.monotonic(), fleet.rows()
        time.sleep(60)
        assert fleet.rows() > rows  # at the latest by the deadline, the other node alone
        cut(False)
        fleet.finish()
        assert time.monotonic() - began > 60
    assert fleet.said("node-0").count(": connected\n") == 1  # it never left
    require_like_simulated(fleet, atoll)


@contextlib.contextmanager
def forwarding(port: int) -> Iterator[tuple[int, Callable[[bool], None]]]:
    """Forward connections to a port; yield our own port, and what cuts all of them or lets new ones through."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_: set[socket.socket] = set()
    is_cut = threading.Event()

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            open_.discard(end)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                if is_cut.is_set():
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", port))
                except OSError:
                    near.close()
                    continue
                open_.update((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()

    def cut(is_away: bool) -> None:
        if not is_away:
            is_cut.clear()
            return
        is_cut.set()
        for end in list(open_):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1], cut
    finally:
        cut(True)
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
