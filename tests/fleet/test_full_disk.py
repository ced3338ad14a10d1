"""A full disk costs a sentence and what could not be kept, no more: at a node, the server, and in a fleet's folder."""

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

from atoll.fleet.agreed.messages import LossesReply, LossesRequest, Refusal, decode, encode, pack
from atoll.fleet.agreed.transport import Failure
from atoll.fleet.flower import flower_fleet as flower
from atoll.fleet.flower import presence
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.local import own_place
from atoll.fleet.flower.superlink import Superlink
from atoll.fleet.folder import init as keys
from atoll.fleet.folder.configuration import FleetConfiguration, read_fleet, read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet, renew_certificate
from atoll.fleet.node.handlers import answer
from atoll.fleet.node.node import open_site
from atoll.fleet.node.shards import write_shards
from atoll.fleet.node.store import FolderStore
from atoll.support.errors import RunError, is_full
from tests.fleets import agreement_of, small

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """A disk that is full while it says so."""

    is_full = False

    def check(self) -> None:
        if self.is_full:
            raise FULL


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Files are flushed to it, by which their writers learn that it is full."""
    found, flush = Disk(), os.fsync

    def fsync(descriptor: int) -> None:
        found.check()
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    yield found
    found.is_full = False


def test_a_node_refuses_in_a_sentence_and_goes_on_once_there_is_room(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = small(method={"name": "ifca", "clusters": 2})
    node = open_site(experiment.settings, write_shards(experiment, tmp_path / "data")[0], 0)
    head = LossesRequest(settings_digest=agreement_of(experiment).digest, nonce="ab", round=0, client=0)
    request = encode(head, pack(experiment.training.initial_models()))
    store, told = FolderStore(tmp_path / "store"), list[str]()
    disk.is_full = True
    with caplog.at_level(logging.INFO):
        reply, _ = decode(answer(node, store, "losses", request, told.append), Refusal)
    assert reply.code == "failed"
    assert caplog.records == []  # where a traceback would be
    assert told[0].endswith(": No space left on device")
    assert f"refused 'losses': cannot write {tmp_path / 'store'}" in told[0]
    disk.is_full = False
    assert len(decode(answer(node, store, "losses", request, told.append), LossesReply)[0].losses) == 2
    assert told[1].endswith("losses so far: 2 of at most 18")


@pytest.mark.parametrize("do", [lambda store: store.get("key"), lambda store: store.drop("key")])
def test_a_store_that_cannot_be_used_says_which_file(tmp_path: Path, do: Callable[[FolderStore], object]) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "key").mkdir()
    with pytest.raises(RunError, match=rf"cannot (read|delete) {tmp_path}/key: \w"):
        do(store)


def test_a_node_that_cannot_note_its_number_says_goodbye(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = init_fleet(tmp_path / "fleet", FleetPlan(1, "127.0.0.1")).folder / "nodes" / "node-0"
    key, client = MagicMock(), MagicMock()
    client.ActivateNode.return_value = SimpleNamespace(node_id=7)
    monkeypatch.setattr("flwr.supercore.primitives.asymmetric.public_key_to_bytes", lambda _: b"key")
    disk.is_full = True
    with (
        pytest.raises(RunError, match="node-id: No space left"),
        presence.linked(read_node(place), client, key, tmp_path / "node-id", lambda _: None),
    ):
        pass
    assert client.DeactivateNode.call_args.args[0].node_id == 7


def broken(*_: object) -> Any:
    """Fail as a call does whose superlink cannot write its database."""
    request = httpx.Request("POST", "https://127.0.0.1/v1/control/start-run")
    raise httpx.HTTPStatusError("500", request=request, response=httpx.Response(500, request=request))


def served(folder: Path) -> FlowerFleet:
    found = FlowerFleet(FleetConfiguration(folder=folder, host="127.0.0.1", nodes=()))
    found.configuration.state.mkdir()
    return found


@pytest.mark.parametrize("call", ["nodes", "call"])
def test_a_server_whose_superlinks_disk_is_full_says_so_at_once(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    fleet = served(tmp_path)
    monkeypatch.setattr(flower, "begin_task", broken)
    disk.is_full = True
    with pytest.raises(RunError, match=f"cannot write {tmp_path}/state/room: No space left") as raised:
        fleet.nodes() if call == "nodes" else list(fleet.call({"node-0": b""}, "train", b"", 30.0))
    assert is_full(raised.value)


def test_a_superlink_that_is_broken_else_is_asked_again_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = served(tmp_path)
    monkeypatch.setattr(flower, "begin_task", broken)
    monkeypatch.setattr(flower, "_PATIENCE", 0.7)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"answers with the HTTP status 500; its last words are in .*superlink\.log"):
        fleet.nodes()
    assert time.monotonic() - began > 0.4
    assert [*fleet.call({"node-0": b""}, "train", b"", 0.6)] == [("node-0", Failure("late"))]
    assert not (tmp_path / "state" / "room").exists()


def test_a_superlink_that_cannot_be_started_again_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    superlink = Superlink(FleetConfiguration(folder=tmp_path, host="127.0.0.1", nodes=()))
    superlink._child = subprocess.Popen([sys.executable, "-c", "exit(3)"], stdin=subprocess.PIPE)

    def start() -> None:
        raise FULL

    superlink._start = start  # type: ignore[method-assign]
    superlink._watcher.start()
    superlink._watcher.join(30)
    with pytest.raises(RunError, match=r"cannot be started again \(No space left on device\)"):
        superlink.require_up()


def test_a_fleets_folder_is_written_whole_or_not_at_all(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = init_fleet(tmp_path / "fleet", FleetPlan(1, "127.0.0.1"))
    before = {path: path.read_bytes() for path in fleet.folder.rglob("*") if path.is_file()}
    disk.is_full = True
    with pytest.raises(RunError, match=r"fleet\.toml: No space left"):
        keys.rotate(fleet.folder, "node-0")
    with pytest.raises(RunError, match=r"server\.pem: No space left"):
        renew_certificate(fleet.folder, 30)
    assert {path: path.read_bytes() for path in before} == before
    disk.is_full = False
    assert keys.rotate(fleet.folder, "node-0")[0] == read_fleet(fleet.folder)
    renew_certificate(fleet.folder, 30)


def test_a_fleet_that_cannot_be_written_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def full(path: Any, flags: int, *rest: Any, **others: Any) -> int:
        if str(path).startswith(str(tmp_path)) and flags & os.O_EXCL and str(path).endswith("node.key"):
            os.close(real(path, flags, *rest, **others))
            return real("/dev/full", os.O_WRONLY)
        return real(path, flags, *rest, **others)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(RunError, match=r"node\.key: No space left on device"):
        init_fleet(tmp_path / "fleet", FleetPlan(2, "127.0.0.1"))
    assert not (tmp_path / "fleet").exists()


def test_no_room_for_a_fleet_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise FULL

    monkeypatch.setattr("tempfile.TemporaryDirectory", full)
    with pytest.raises(RunError, match="no temporary folder can be made: No space left on device"), own_place():
        pass


def test_a_server_says_how_the_run_goes_on(tmp_path: Path) -> None:
    from atoll.cli.fleet_run_commands import _carry_out

    class Fleet:
        def __enter__(self) -> None:
            raise RunError("cannot write runs/x/metrics.jsonl: No space left on device") from FULL

        def __exit__(self, *_: object) -> None:
            pass

    with pytest.raises(RunError, match=r"on device; free some space and give the same command with --resume$"):
        _carry_out(small(run={"executor": "fleet"}), tmp_path / "run", False, False, Fleet())
