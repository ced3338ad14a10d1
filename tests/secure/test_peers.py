"""By what nodes know each other: `peers.toml`, written with a fleet's folder, and read only where it fits."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from atoll import InputError
from atoll.fleet.folder.configuration import read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet, revoke, rotate
from atoll.fleet.folder.peers import read_identity
from atoll.secure.participant import Identity


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    init_fleet(tmp_path / "fleet", FleetPlan(3, "127.0.0.1"))
    return tmp_path / "fleet"


def identity_in(fleet: Path, name: str) -> Identity | None:
    found = read_node(fleet / "nodes" / name)
    return read_identity(found.name, found.key, found.peers)


def keys_known_to(fleet: Path, name: str) -> dict[str, str]:
    table = tomllib.loads((fleet / "nodes" / name / "peers.toml").read_text())
    return {row["name"]: row["public_key"] for row in table["nodes"]}


def test_a_new_fleets_nodes_know_each_other(fleet: Path) -> None:
    rows = tomllib.loads((fleet / "fleet.toml").read_text())["nodes"]
    expected = {row["name"]: row["public_key"] for row in rows}
    assert [keys_known_to(fleet, f"node-{k}") for k in range(3)] == [expected] * 3
    found = identity_in(fleet, "node-1")
    assert found is not None
    assert (found.name, sorted(found.peers)) == ("node-1", ["node-0", "node-1", "node-2"])
    assert b"PRIVATE" not in (fleet / "nodes" / "node-1" / "peers.toml").read_bytes()


def test_they_follow_new_keys_and_those_taken_back(fleet: Path) -> None:
    before = keys_known_to(fleet, "node-0")
    rotate(fleet, "node-1")
    after = keys_known_to(fleet, "node-0")
    assert (before["node-1"] != after["node-1"], before["node-2"] == after["node-2"]) == (True, True)
    assert identity_in(fleet, "node-1") is not None
    revoke(fleet, "node-2")
    assert sorted(keys_known_to(fleet, "node-0")) == ["node-0", "node-1"]


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "another key of its own": (
        lambda path: edit(path, lambda rows: rows[0].update(public_key=rows[1]["public_key"])),
        "has another public key of 'node-0'; it must be that of node.key",
    ),
    "none of its own": (lambda path: edit(path, lambda rows: rows.pop(0)), "has no public key of 'node-0'"),
    "a name twice": (lambda path: edit(path, lambda rows: rows[2].update(name="node-1")), "a name twice"),
    "no key": (lambda path: edit(path, lambda rows: rows[1].update(public_key="none")), "is not a public key"),
    "no nodes": (lambda path: path.write_text(""), "nodes is missing"),
    "no TOML": (lambda path: path.write_text("nodes = ["), "peers.toml: "),
    "more than names and keys": (lambda path: edit(path, lambda rows: rows[1].update(secret="x")), "secret is unknown"),
}


def edit(path: Path, change: Callable[[list[dict[str, str]]], object]) -> None:
    table = tomllib.loads(path.read_text())
    change(table["nodes"])
    path.write_text(tomli_w.dumps(table))


@pytest.mark.parametrize("what", SPOILT)
def test_a_file_that_does_not_fit_is_told(what: str, fleet: Path) -> None:
    spoil, told = SPOILT[what]
    spoil(fleet / "nodes" / "node-0" / "peers.toml")
    with pytest.raises(InputError) as caught:
        identity_in(fleet, "node-0")
    assert told in str(caught.value)


def test_without_the_file_a_node_knows_nobody(fleet: Path) -> None:
    (fleet / "nodes" / "node-0" / "peers.toml").unlink()
    assert identity_in(fleet, "node-0") is None
