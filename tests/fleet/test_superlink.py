"""What the operator is told of the superlink: calls that its guard refuses, and that it died."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock
from urllib.request import proxy_bypass

import httpx
import pytest

from atoll.fleet.flower import flower_fleet as flower
from atoll.fleet.flower.calls import control_client
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.refusals import Refusals
from atoll.fleet.flower.superlink import Superlink, free_port
from atoll.fleet.folder.certificates import require_flower
from atoll.fleet.folder.configuration import FleetConfiguration
from atoll.fleet.folder.init import FleetPlan, init_fleet
from atoll.support.errors import InputError, RunError


def test_refused_calls_are_a_line_now_and_then() -> None:
    lines: list[str] = []
    now = 0.0
    refusals = Refusals(lines.append, lambda: now)
    for status in (401, 401, 503, 409, 404):
        refusals.add(status, "10.0.0.9")
    assert lines == ["refused: 1 call (401 no known key) from 10.0.0.9"]
    now = 9.9
    for place in range(5):
        refusals.add(401, f"10.0.0.{place}")
    assert len(lines) == 1
    now = 10.0
    refusals.add(418, "10.0.0.9")
    assert lines[1:] == [
        "refused: 6 calls (401 no known key) from 10.0.0.9 and 10.0.0.0 and 10.0.0.1 and 3 more, "
        "1 call (404 no such call) from 10.0.0.9, 1 call (418) from 10.0.0.9"
    ]


def test_from_however_many_places_they_come_they_take_little_room() -> None:
    lines: list[str] = []
    refusals = Refusals(lines.append, lambda: 0.0)
    refusals._next = 1.0
    for place in range(100_000):
        refusals.add(401, str(place))
    assert len(refusals._counts) == 1001


def superlink_in(folder: Path, told: list[str]) -> Superlink:
    (folder / "state").mkdir()
    return Superlink(FleetConfiguration(folder=folder, host="127.0.0.1", nodes=()), told.append)


def test_the_server_passes_on_what_its_superlink_refused(tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "state").mkdir()
    log = tmp_path / "state" / "superlink.log"
    log.write_text("refused: long ago\n")
    superlink = Superlink(FleetConfiguration(folder=tmp_path, host="127.0.0.1", nodes=()), told.append)
    with open(log, "a") as file:
        file.write("a traceback\nrefused: 2 calls (401 no known key) from 10.0.0.9\nrefused: half a li")
    superlink._pass_on()
    superlink._pass_on()
    assert told == ["superlink: refused: 2 calls (401 no known key) from 10.0.0.9"]


def test_a_line_longer_than_what_is_read_at_once_holds_up_no_later_ones(tmp_path: Path) -> None:
    told: list[str] = []
    superlink = superlink_in(tmp_path, told)
    (tmp_path / "state" / "superlink.log").write_bytes(b"x" * (2**21 + 9) + b"\nrefused: 2 calls\nrefused: half a li")
    for _ in range(4):
        superlink._pass_on()
    assert told == ["superlink: refused: 2 calls"]


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_a_servers_own_superlink_is_called_without_a_proxy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "example.org")
    configuration = init_fleet(tmp_path / "fleet", FleetPlan(1, "fleet.example.com", listen="10.0.0.7"))
    monkeypatch.setattr("os.environ", dict(os.environ))
    control_client(configuration).close()
    assert all(map(proxy_bypass, ("127.0.0.1", "localhost", "10.0.0.7", "example.org")))
    assert not proxy_bypass("fleet.example.com")


def test_that_it_died_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    superlink = superlink_in(tmp_path, told)
    over = threading.Event()

    def start() -> None:
        superlink._child = subprocess.Popen([sys.executable, "-c", "exit(3)"], stdin=subprocess.PIPE)
        if len(told) >= 2:
            superlink._is_over.set()
            over.set()

    superlink._start = start  # type: ignore[method-assign]
    superlink._start()
    superlink._watcher.start()
    assert over.wait(30)
    superlink._watcher.join(10)
    assert told[0] == (
        f"Flower's superlink ended (status 3) and is started again; its last words: {tmp_path}/state/superlink.log"
    )


def failing_once(result: object) -> Callable[..., object]:
    """Return what fails as a call does whose superlink dies under it, and then returns this."""
    failures = [httpx.RemoteProtocolError("Server disconnected without sending a response.")]

    def call(*_: object) -> object:
        if failures:
            raise failures.pop()
        return result

    return call


@pytest.mark.parametrize("content", [None, "another's", b"half a key"])
def test_a_key_that_is_not_the_certificates_is_refused_before_the_superlink_starts(
    configuration: FleetConfiguration, content: str | bytes | None
) -> None:
    key, told = configuration.folder / "server.key", list[str]()
    if content is None:
        key.unlink()
    else:
        key.write_bytes(content if isinstance(content, bytes) else (configuration.folder / "ca.key").read_bytes())
    with pytest.raises(InputError, match=r"server.key: must be the key of server.pem, without a password \("):
        Superlink(configuration, told.append).__enter__()
    assert told == []


class Away:
    """A superlink that was away for a moment when it was asked for its nodes."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = nodes

    def GetNodes(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(nodes=[SimpleNamespace(node_id=number) for number in self.nodes])


@pytest.fixture
def configuration(tmp_path: Path) -> FleetConfiguration:
    return init_fleet(tmp_path / "fleet", FleetPlan(1, "127.0.0.1", listen="127.0.0.1", port=free_port()))


def test_a_server_bears_that_its_superlink_dies_when_it_begins(
    configuration: FleetConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = FlowerFleet(configuration)
    served.superlink = MagicMock(ask=lambda call: call())
    monkeypatch.setattr(flower, "register_nodes", failing_once({7: "node-0"}))
    monkeypatch.setattr(served, "_beat", lambda: None)
    with served:
        assert served._names == {7: "node-0"}


def test_a_server_bears_that_its_superlink_dies_when_it_asks_for_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = FlowerFleet(FleetConfiguration(folder=tmp_path, host="127.0.0.1", nodes=()))
    served._properties = {"node-0": {}}
    monkeypatch.setattr(served, "_with_task", lambda call, _: call(SimpleNamespace(client=Away([7]))))
    monkeypatch.setattr(flower, "read_fleet", lambda _: served.configuration)
    monkeypatch.setattr(flower, "list_nodes", failing_once({"node-0": SimpleNamespace(node_id=7)}))
    assert served._online(time.monotonic() + 30) == ["node-0"]


def test_a_server_bears_that_its_task_is_given_up_while_it_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a superlink that a hundred nodes keep busy."""
    served = FlowerFleet(FleetConfiguration(folder=tmp_path, host="127.0.0.1", nodes=()))
    request = httpx.Request("POST", "https://127.0.0.1/v1/runtime/pull-task-input")
    given_up = [httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))] * 2
    tokens: list[str] = []

    def begin(_: object) -> tuple[int, str]:
        if given_up:
            raise given_up.pop()
        return 1, "token"

    def client(_: object, token: str) -> Away:
        tokens.append(token)
        return Away([])

    monkeypatch.setattr(flower, "begin_task", begin)
    monkeypatch.setattr(flower, "runtime_client", client)
    assert served.nodes() == {}
    assert (given_up, tokens) == ([], ["token"])


def test_one_that_dies_whenever_it_starts_is_given_up_in_a_sentence(
    configuration: FleetConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.fleet.flower.superlink._RESTARTS", 0)
    monkeypatch.setattr(
        Superlink,
        "_start",
        lambda self: setattr(self, "_child", subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)),
    )
    with pytest.raises(RunError, match=r"ended 1 times in a minute; its last words are in .*superlink.log$") as raised:
        Superlink(configuration).__enter__()
    assert raised.value.__cause__ is not raised.value, "whoever follows the causes would never end"


@pytest.mark.more
def test_a_damaged_database_is_a_sentence_at_once(configuration: FleetConfiguration) -> None:
    configuration.state.mkdir()
    (configuration.state / "flower.db").write_text("of no use")
    told: list[str] = []
    with pytest.raises(RunError, match=r"flower\.db: is damaged, or a newer Flower's; delete it"):
        Superlink(configuration, told.append).__enter__()
    assert not [line for line in told if "started again" in line]


def test_a_version_of_flower_that_was_not_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.99.0" if name == "flwr" else version(name))
    with pytest.raises(InputError, match=r"^a fleet needs flwr.*, not 1\.99\.0; run pip install "):
        require_flower()
