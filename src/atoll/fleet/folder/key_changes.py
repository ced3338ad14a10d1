"""Changes of a fleet's keys: revoking one, and replacing one."""

from pathlib import Path
from typing import Any

import tomli_w

from atoll.fleet.folder.certificates import make_key_pair
from atoll.fleet.folder.configuration import FILE, PEERS, FleetConfiguration, read_fleet
from atoll.fleet.folder.peers import peers_as_toml
from atoll.support.errors import InputError
from atoll.support.files import write_atomically, write_new
from atoll.support.untrusted import parse_toml


def revoke(folder: Path, name: str) -> FleetConfiguration:
    """Remove a node from ``fleet.toml``; return the new configuration. Comments in the file are lost."""
    path, table, row = _find(folder, name)
    table["nodes"].remove(row)
    _write(path, table)
    return read_fleet(folder)


def rotate(folder: Path, name: str) -> tuple[FleetConfiguration, Path]:
    """Replace a node's key; return the new configuration and the private key's file."""
    path, table, row = _find(folder, name)
    private, row["public_key"] = make_key_pair(name)
    key = path.parent / "nodes" / name / "node.key"
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = key.with_suffix(".new")
    new.unlink(missing_ok=True)
    write_new(new, private, 0o600)
    _write(path, table)
    new.replace(key)  # renaming needs no space, so a full disk leaves the old key in both places
    return read_fleet(folder), key


def _write(path: Path, table: dict[str, Any]) -> None:
    """Write ``fleet.toml``, and ``peers.toml`` in nodes' folders on this machine; owners elsewhere must be informed."""
    write_atomically(path, tomli_w.dumps(table).encode())
    for row in table["nodes"]:
        if (place := path.parent / "nodes" / row["name"]).is_dir():
            write_atomically(place / PEERS, peers_as_toml(table["nodes"]))


def _find(folder: Path, name: str) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return the file, its table, and a node's row."""
    path = read_fleet(folder).folder / FILE
    table = parse_toml(path.read_bytes())
    for row in table["nodes"]:
        if row["name"] == name:
            return path, table, row
    known = ", ".join(row["name"] for row in table["nodes"][:8])
    raise InputError(f"{path}: has no node {name!r}; it has {known or 'none'}")
