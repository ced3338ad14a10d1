"""What takes long says what it waits for, and since when."""

import threading
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import httpx
import pytest
from rich.console import Console

from atoll import RunError
from atoll.cli.teller import Teller
from atoll.fleet.agreed.waiting import Waiting, waiting
from atoll.fleet.flower import presence, wire
from atoll.fleet.folder.configuration import read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet
from atoll.fleet.server import gathering, joining
from atoll.fleet.server.joining import wait_for_nodes
from tests.fleet.test_hostile import carry
from tests.fleets import agreement_of, open_sites, small
from tests.memory_fleet import MemoryFleet


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gathering and joining speak ten times a second."""
    for module in (gathering, joining):
        monkeypatch.setattr(module, "waiting", lambda tell, what: waiting(tell, what, 0.1))


def test_the_innermost_speaks_until_it_is_over() -> None:
    told: list[str] = []
    with waiting(told.append, lambda: "outer", 0.05):
        time.sleep(0.15)
        with waiting(told.append, lambda: "inner", 0.05):
            time.sleep(0.2)
        inner = told.count("inner")
        assert inner >= 2
        assert told.index("inner") >= 1
        assert "outer" not in told[told.index("inner") :]
        time.sleep(0.15)
    assert told[-1] == "outer"
    assert told.count("inner") == inner
    before = list(told)
    time.sleep(0.15)
    assert told == before


@pytest.mark.usefixtures("quick")
def test_an_event_says_whom_it_waits_for_and_how_long(tmp_path: Path) -> None:
    experiment = small(fleet={"deadline_seconds": 0.5, "wait_seconds": 5.0})
    silent = {"node-2": lambda task, payload, honest: honest() if task == "describe" else None}
    _, told = carry(experiment, MemoryFleet(open_sites(experiment, tmp_path / "data"), silent), tmp_path / "live")
    assert "waiting for node-2: 0 s of 0.5 s" in told
    assert not [sentence for sentence in told if "node-1" in sentence and "waiting for node-2" in sentence]


@pytest.mark.usefixtures("quick")
def test_a_server_that_waits_for_nodes_says_so(tmp_path: Path) -> None:
    experiment = small()
    fleet = MemoryFleet(open_sites(experiment, tmp_path))
    fleet.gone.add("node-3")
    told: list[str] = []
    with pytest.raises(RunError):
        wait_for_nodes(fleet, agreement_of(experiment), None, 0.5, told.append, poll_seconds=0.05)
    assert told[0] == "3 of 4 clients are there; missing: 3"
    assert "waiting for nodes: 0 s of 0.5 s; 3 of 4 clients are there; missing: 3" in told


@pytest.mark.more
def test_a_node_with_other_settings_is_asked_ever_less_often(tmp_path: Path) -> None:
    asked: list[float] = []

    def count(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes:
        asked.append(time.monotonic())
        return honest()

    fleet = MemoryFleet(open_sites(small(), tmp_path), {"node-0": count})
    with pytest.raises(RunError, match="has other settings"):
        wait_for_nodes(fleet, agreement_of(small(seed=3)), None, 1.5, poll_seconds=0.01)
    assert 3 <= len(asked) <= 9, "of about a hundred looks"


def test_a_node_that_the_server_counts_as_there_does_not_say_that_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = init_fleet(tmp_path / "fleet", FleetPlan(1, "127.0.0.1")).folder / "nodes" / "node-0"
    request, told = httpx.Request("POST", "https://127.0.0.1/v1/fleet/activate-node"), list[str]()
    taken = httpx.HTTPStatusError("412", request=request, response=httpx.Response(412, request=request))
    client = MagicMock()
    client.ActivateNode.side_effect = [taken, taken, SimpleNamespace(node_id=7)]
    monkeypatch.setattr("flwr.supercore.primitives.asymmetric.public_key_to_bytes", lambda _: b"key")
    monkeypatch.setattr(presence, "_AGAIN_SECONDS", 0.2)
    monkeypatch.setattr(presence, "waiting", lambda tell, what: waiting(tell, what, 0.05))
    with presence.linked(read_node(place), client, MagicMock(), tmp_path / "node-id", told.append):
        pass
    said = {sentence for sentence in told if isinstance(sentence, Waiting)}
    assert said == {"node-0: still calling 127.0.0.1:9092: 0 s"}


def test_in_a_file_sentences_on_waiting_become_rarer() -> None:
    file = StringIO()
    teller = Teller(Console(file=file, width=80))
    for second in range(5, 105, 5):
        teller(Waiting(f"waiting for {second} s"))
    teller("event 1")
    teller(Waiting("again"))
    assert file.getvalue().split("\n") == [*(f"waiting for {s} s" for s in (5, 15, 35, 75)), "event 1", "again", ""]


def test_in_a_terminal_they_take_each_others_place() -> None:
    file = StringIO()
    teller = Teller(Console(file=file, width=80, force_terminal=True, color_system=None))
    threads = [threading.Thread(target=teller, args=(each,)) for each in (Waiting("first"), Waiting("second"), "news")]
    for thread in threads:
        thread.start()
        thread.join()
    lines = file.getvalue().split("\n")
    assert len(lines) == 2
    assert lines[0].split("\r\x1b[2K") == ["", "first", "second", "news"]


@pytest.mark.more
def test_a_heartbeat_that_fails_is_repeated_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A superlink that is away for a moment must not take its nodes for gone."""
    monkeypatch.setattr(wire, "_BEAT_AGAIN_SECONDS", 0.01)
    beats, came = list[float](), threading.Event()

    def beat() -> None:
        beats.append(time.monotonic())
        if len(beats) < 4:
            raise ConnectionError
        came.set()

    with wire.beating(beat, 1.0):
        assert came.wait(30)
    assert beats[3] - beats[0] < 3.0
