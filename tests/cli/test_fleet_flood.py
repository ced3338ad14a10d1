"""Thousands of connections that come to no point, before TLS and after it: training goes on beside them."""

import contextlib
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.fleet.flower.connections import OF_ADDRESS, OF_NODE, STRANGERS
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.superlink import free_port
from atoll.fleet.folder.configuration import read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet
from tests.cli.fleets import wait_until
from tests.cli.test_fleet_security import signed
from tests.fleets import nodes_in_threads

pytest.importorskip("httpx")
pytest.importorskip("flwr")

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.more]

NODES = 3
MANY = 5000
DESCRIPTORS = 1024
"""That the superlink may have open; its own files and TLS included."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerFleet]:
    """A superlink of few descriptors, with nodes that send back what they are sent."""
    before, limits = dict(os.environ), resource.getrlimit(resource.RLIMIT_NOFILE)
    plan = FleetPlan(NODES, "127.0.0.1", listen="127.0.0.1", port=free_port(), max_mib=1)
    configuration = init_fleet(tmp_path_factory.mktemp("flood") / "fleet", plan)

    names = [f"node-{number}" for number in range(1, NODES)]
    echo = nodes_in_threads(configuration.folder, names, lambda name, task, payload: payload)
    with FlowerFleet(configuration) as fleet, echo:
        resource.prlimit(fleet.superlink.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        wait_until(lambda: len(fleet.nodes()) == NODES - 1, 60)
        yield fleet
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.environ.clear()
    os.environ.update(before)


class Flood:
    """Connections of one kind, each made again when it is cut; at most `most` at a time."""

    def __init__(
        self, port: int, most: int, first: int = 2, begin: Callable[[socket.socket], socket.socket] = lambda own: own
    ) -> None:
        """Connect from four addresses, of which the first is 127.0.0.`first`, and let each `begin` something."""
        self.port, self.most, self.first, self.begin = port, most, first, begin
        self.made, self.resting = 0, threading.Event()
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.press, args=(number,), daemon=True) for number in range(4)]

    def __enter__(self) -> "Flood":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def rest(self) -> None:
        """Connect no more, and leave what is connected."""
        self.resting.set()

    def press(self, number: int) -> None:
        callers = list[socket.socket]()
        while not self.over.is_set():
            if self.resting.wait(0.001 * (len(callers) >= self.most // len(self.threads))):
                self.over.wait()
                break
            with contextlib.suppress(OSError):
                caller = socket.create_connection(("127.0.0.1", self.port), 1, (f"127.0.0.{self.first + number}", 0))
                callers.append(self.begin(caller))
                self.made += 1
            if len(callers) >= self.most // len(self.threads):
                callers.pop(0).close()
        for caller in callers:
            caller.close()


def seconds_of_exchange(fleet: FlowerFleet) -> float:
    began = time.monotonic()
    came = dict(fleet.call({f"node-{number}": b"" for number in range(1, NODES)}, "train", os.urandom(10_000), 60))
    assert all(isinstance(reply, bytes) for reply in came.values()), came
    return time.monotonic() - began


def open_files(process: int) -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def memory(process: int) -> int:
    """Return a process's resident memory, MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024 // 10**6


@pytest.mark.parametrize("first", [pytest.param(1, id="nodes' own address too", marks=pytest.mark.slow), 2])
def test_thousands_of_raw_connections_neither_stop_training_nor_take_memory(running: FlowerFleet, first: int) -> None:
    pid = running.superlink.pid
    seconds_of_exchange(running)
    quiet, least = [seconds_of_exchange(running) for _ in range(3)], memory(pid)
    with Flood(running.configuration.port, MANY, first) as flood:
        wait_until(lambda: flood.made >= MANY, 120)
        seconds, files, most = list[float](), 0, 0
        for _ in range(3):
            seconds.append(seconds_of_exchange(running))
            files, most = max(files, open_files(pid)), max(most, memory(pid))
    print(f"{flood.made} connections: exchanges of {max(quiet):.1f} s take {max(seconds):.1f} s; {files} descriptors;")
    print(f"{most - least} MB more memory than {least}")
    assert running.superlink.pid == pid
    assert max(seconds) < 20
    assert files < STRANGERS + OF_ADDRESS
    assert most - least < 150


@pytest.mark.slow
def test_400_slow_connections_with_one_key_take_that_nodes_share(running: FlowerFleet) -> None:
    """Each has shown the key, and sends its body a byte at a time; the other nodes go on."""
    configuration = running.configuration
    place = configuration.folder / "nodes" / "node-0"
    context = ssl.create_default_context(cafile=str(place / "ca.pem"))
    shown = "".join(f"{name}: {value}\r\n" for name, value in signed(read_node(place)).items())
    head = f"POST /v1/fleet/push-messages HTTP/1.1\r\nhost: here\r\n{shown}content-length: 60000\r\n\r\n".encode()

    def begin(caller: socket.socket) -> socket.socket:
        secure = context.wrap_socket(caller, server_hostname="127.0.0.1")
        secure.sendall(head)
        return secure

    before = open_files(running.superlink.pid)
    with Flood(configuration.port, 400, begin=begin) as flood:
        wait_until(lambda: flood.made >= 400, 120)
        seconds = max(seconds_of_exchange(running) for _ in range(3))
        flood.rest()
        wait_until(lambda: open_files(running.superlink.pid) - before <= OF_NODE, 10)
    print(f"{flood.made} connections with a key: exchanges take {seconds:.1f} s")
    assert seconds < 20
