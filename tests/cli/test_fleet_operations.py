"""What an operator sees of a fleet: `atoll fleet status --watch`, and metrics for Prometheus."""

import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from atoll import Experiment, make_runs, read_experiment, run_events
from atoll.cli.common import out
from atoll.cli.fleet_metrics import serving_metrics
from atoll.cli.fleet_run_commands import _ended_by_signals
from atoll.fleet.agreed.transport import Failure
from atoll.fleet.flower.flower_node import _reply_to
from atoll.fleet.flower.superlink import free_port
from atoll.fleet.flower.wire import make_task
from atoll.fleet.folder.configuration import FleetConfiguration, read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet, rotate
from atoll.fleet.server.notices import read_refused
from atoll.support.errors import InputError
from tests.cli.conftest import TINY, Command
from tests.fleets import open_sites, sending
from tests.memory_fleet import MemoryFleet

pytest.importorskip("flwr")

LIVE = TINY + "\n[run]\nexecutor = 'fleet'\ncheckpoint_every = 1\n"
PRIVATE = "\n[privacy]\ntrust = 'server'\nclip = 1.0\nnoise = 2.0\n"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetConfiguration:
    """A fleet of three nodes that are there, as its superlink would say; nothing runs."""
    made = init_fleet(tmp_path / "fleet", FleetPlan(3, "127.0.0.1", listen="127.0.0.1", port=free_port()))
    seen = (datetime.now(UTC) - timedelta(seconds=3700)).isoformat()
    rows = [
        {"node": node.name, "clients": list(node.clients), "status": "online", "since": seen, "last_seen": seen}
        for node in made.nodes
    ]
    monkeypatch.setattr("atoll.fleet.flower.calls.status_of_nodes", lambda _: [dict(row) for row in rows])
    monkeypatch.setattr(out, "_width", 160)
    return made


def carried_out(folder: Path, text: str, **how: Any) -> Path:
    """Carry out a run of which one node never answers; return its folder."""
    (folder / "live.toml").write_text(text)
    experiment = Experiment(make_runs(read_experiment(folder / "live.toml"))[0])
    nodes = MemoryFleet(open_sites(experiment, folder / "data"), {"node-1": sending(lambda _: Failure("failed"))})
    for _ in run_events(experiment, folder / "run", fleet=nodes, **how):
        pass
    return folder / "run"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return carried_out(tmp_path_factory.mktemp("made"), LIVE)


@pytest.fixture
def run(tmp_path: Path, made: Path) -> Path:
    """The folder of a run of which one node never answers; to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def row_of(run: Path) -> dict[str, Any]:
    """Return a run's last row."""
    row: dict[str, Any] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return row


class FirmClock(datetime):
    """A clock that stands still."""

    moment: datetime

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return cls.moment.astimezone(tz)


def watched(atoll: Command, monkeypatch: pytest.MonkeyPatch, times: int, *words: str) -> Sequence[str]:
    """Return the lines of a status that is shown so often, until Ctrl-C."""
    left = [None] * (times - 1)

    def sleep(_: float) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()

    monkeypatch.setattr("atoll.cli.fleet_commands.time.sleep", sleep)
    done = atoll("fleet", "status", "--config", "fleet", "--watch", *words)
    assert (done.code, done.err) == (130, "")
    return str(done.out).splitlines()


def test_watching_shows_nodes_what_was_refused_and_what_was_spent_again_and_again(
    atoll: Command, fleet: FleetConfiguration, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = watched(atoll, monkeypatch, 3, "--out", "run")
    assert sum(line.split()[0] == "role" for line in lines) == 3
    refused = read_refused(run / "refused.jsonl")["node-1"]["failed"]
    node = next(line for line in lines if " node-1 " in line)
    assert node.split()[-2:] == ["failed", str(refused)]
    assert re.search(r" 1:01:4\d ", node), "the time since it was last seen"
    last = row_of(run)
    shown = f"loss {last['train_loss']:.4g}, accuracy {last['test_accuracy']:.4g}"
    assert lines[-1] == f"run: event {last['event']}, round {last['round']}: {shown}"


def test_a_node_that_was_seen_just_now_says_so(
    atoll: Command, fleet: FleetConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC).replace(microsecond=0).isoformat()
    row = {"node": "node-0", "clients": [0], "status": "online", "since": now, "last_seen": now}
    monkeypatch.setattr("atoll.fleet.flower.calls.status_of_nodes", lambda _: [dict(row)])
    monkeypatch.setattr("atoll.cli.fleet_roles.datetime", FirmClock)
    FirmClock.moment = datetime.fromisoformat(now)
    assert " 0:00:00 " in atoll("fleet", "status", "--config", "fleet").out


@pytest.mark.more
def test_what_was_spent_is_shown(
    atoll: Command, fleet: FleetConfiguration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dp_accounting")
    run = carried_out(tmp_path, LIVE + PRIVATE)
    assert watched(atoll, monkeypatch, 1, "--out", "run")[-1].endswith(f"epsilon spent {row_of(run)['epsilon']:.4g}")
    with serving_metrics(str(port := free_port()), fleet, run):
        assert scraped(port)["atoll_run_epsilon"] == row_of(run)["epsilon"] > 0


def test_watching_goes_on_while_the_server_is_away(
    atoll: Command, fleet: FleetConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: FleetConfiguration) -> list[dict[str, Any]]:
        raise InputError("nothing answers")

    monkeypatch.setattr("atoll.fleet.flower.calls.status_of_nodes", away)
    assert watched(atoll, monkeypatch, 2) == ["nothing answers"] * 2


def test_damaged_files_of_a_run_are_one_sentence(atoll: Command, fleet: FleetConfiguration, run: Path) -> None:
    words = ("fleet", "status", "--config", "fleet")
    for name in ("refused.jsonl", "strikes.jsonl", "metrics.jsonl"):
        (run / name).write_text("[1, 2]\nnothing\n")
        assert f"run/{name} cannot be read, or is damaged" in atoll(*words, "--out", "run").refused()
        (run / name).unlink()
    assert atoll(*words, "--out", "nowhere").succeeded().endswith("nowhere: no event yet\n")
    assert atoll(*words, "--watch", "--json").refused() == "--watch and --json: give one of them, not both"


@pytest.mark.more
def test_a_resumed_run_counts_its_refusals_once(tmp_path: Path, run: Path) -> None:
    before = read_refused(run / "refused.jsonl")
    for file in (run / "summary.json", *(run / "checkpoint").glob("event-00000004*")):
        file.unlink()
    carried_out(tmp_path, LIVE, resume=True)
    assert read_refused(run / "refused.jsonl") == before


def scraped(port: int) -> dict[str, float]:
    """Return what Prometheus reads, by name and labels."""
    parser = pytest.importorskip("prometheus_client.parser")
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = parser.text_string_to_metric_families(answer.read().decode())
    return {" ".join((each.name, *each.labels.values())): each.value for one in families for each in one.samples}


def test_metrics_are_what_the_status_and_the_last_row_say(fleet: FleetConfiguration, run: Path) -> None:
    port = free_port()
    with serving_metrics(str(port), fleet, run):
        shown = scraped(port)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 5)
    assert shown["atoll_fleet_superlink_up"] == shown["atoll_fleet_node_online node-2"] == 1
    assert 364 < (shown["atoll_fleet_certificate_expiry_seconds server"] - time.time()) / 86_400 < 366
    refused = read_refused(run / "refused.jsonl")["node-1"]["failed"]
    assert shown["atoll_fleet_results_refused_total node-1 failed"] == refused > 0
    for name in ("event", "round", "train_loss", "test_accuracy", "bytes_up"):
        assert shown[f"atoll_run_{name}"] == row_of(run)[name]


def test_a_node_is_looked_up_by_the_key_that_it_has_now(
    atoll: Command, fleet: FleetConfiguration, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []

    def status(configuration: FleetConfiguration) -> list[dict[str, Any]]:
        keys.append(configuration.nodes[0].public_key)
        rotate(configuration.folder, "node-0")
        return []

    monkeypatch.setattr("atoll.fleet.flower.calls.status_of_nodes", status)
    watched(atoll, monkeypatch, 2)
    with serving_metrics(str(port := free_port()), fleet, run):
        assert scraped(port)["atoll_fleet_superlink_up"] == scraped(port)["atoll_fleet_superlink_up"] == 1
    assert len(set(keys)) == len(keys) == 4


@pytest.mark.more
def test_metrics_say_that_the_superlink_is_away(
    fleet: FleetConfiguration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    with serving_metrics(f"127.0.0.1:{(port := free_port())}", fleet, tmp_path / "not-yet"):
        shown = scraped(port)
    assert shown["atoll_fleet_superlink_up"] == 0
    assert set(shown) == {"atoll_fleet_superlink_up", *(name for name in shown if "certificate" in name)}


@pytest.mark.parametrize("address", ["", "x", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", ":-1", "1e3"])
def test_an_address_that_is_none_is_refused(atoll: Command, fleet: FleetConfiguration, address: str) -> None:
    told = atoll("fleet", "server", "tiny.toml", "--config", "fleet", "--out", "run", "--metrics", address).refused()
    assert told == f"--metrics {address!r}: must be PORT or HOST:PORT, such as 127.0.0.1:9464"


def test_a_metrics_port_that_is_taken_is_one_sentence_before_anything_is_written(
    atoll: Command, fleet: FleetConfiguration
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = ("fleet", "server", "tiny.toml", "--config", "fleet", "--out", "run", "--metrics", port)
        told = atoll(*words, "--set", "clustering.clusters=1").refused()
    assert told == f"--metrics {port}: Address already in use; give another address"
    assert not Path("run").exists()
    assert not fleet.state.exists()


def test_the_fleets_own_port_is_none_for_metrics(atoll: Command, fleet: FleetConfiguration) -> None:
    words = ("fleet", "server", "tiny.toml", "--config", "fleet", "--out", "run", "--metrics", fleet.port)
    told = atoll(*words, "--set", "clustering.clusters=1").refused()
    assert told == f"--metrics {fleet.port}: is the fleet's own port in fleet.toml; give another"


def test_a_signal_ends_a_node_also_while_it_works(fleet: FleetConfiguration) -> None:
    def answer(task: str, payload: bytes) -> bytes:
        os.kill(os.getpid(), signal.SIGTERM)
        return b""

    node = read_node(fleet.folder / "nodes" / "node-0")
    asked = make_task(1, 1, "train", b"", 60.0, 1000)
    with pytest.raises(SystemExit, match="143"), _ended_by_signals():
        _reply_to(asked, answer, node, lambda line: None)
