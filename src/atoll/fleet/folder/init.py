"""Writing a fleet's folder: ``atoll fleet init`` and ``renew``."""

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from atoll.fleet.folder.certificates import (
    Certified,
    make_authority,
    make_key_pair,
    make_server_certificate,
    require_valid,
)
from atoll.fleet.folder.configuration import FILE, PEERS, FleetConfiguration, read_file, read_fleet
from atoll.fleet.folder.peers import peers_as_toml
from atoll.support.errors import InputError, RunError
from atoll.support.files import write_atomically, write_new

AUTHORITY_DAYS = 3650


@dataclass(frozen=True)
class FleetPlan:
    """The layout of a new fleet, see `FleetConfiguration`; the server's certificate is valid for `days`.

    Clients are assigned to nodes in turn, so that with as many clients as nodes, node K serves client K. `samples` are
    each client's, if agreed on.
    """

    nodes: int
    host: str
    clients: int | None = None
    listen: str = "0.0.0.0"
    port: int = 9092
    days: int = 365
    max_mib: int = 256
    samples: tuple[int, ...] | None = None


def init_fleet(folder: Path, plan: FleetPlan) -> FleetConfiguration:
    """Write a new fleet's folder. Private files are readable only by their owner."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder}: is not an empty folder, and nothing is overwritten; give another one")
    try:
        return _write_fleet(folder, plan)
    except (OSError, RunError):
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_fleet(folder: Path, plan: FleetPlan) -> FleetConfiguration:
    authority = make_authority(max(plan.days, AUTHORITY_DAYS))
    server = make_server_certificate(authority, _hosts(plan.host), plan.days)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_new(folder / "ca.pem", authority.certificate, 0o644)
    write_new(folder / "ca.key", authority.key, 0o600)
    write_new(folder / "server.pem", server.certificate, 0o644)
    write_new(folder / "server.key", server.key, 0o600)
    write_new(folder / "secret", secrets.token_hex(32).encode(), 0o600)
    rows = [_init_node(folder, plan, authority.certificate, number) for number in range(plan.nodes)]
    for row in rows:
        write_new(folder / "nodes" / row["name"] / PEERS, peers_as_toml(rows), 0o644)
    common = {"host": plan.host, "listen": plan.listen, "port": plan.port, "max_mib": plan.max_mib}
    write_new(folder / FILE, tomli_w.dumps({**common, "nodes": rows}).encode(), 0o644)
    return read_fleet(folder)


def renew_certificate(folder: Path, days: int) -> None:
    """Write a new certificate for the server, signed by the same authority; nodes need no change."""
    fleet = read_fleet(folder)
    authority = Certified(require_valid(fleet.folder / "ca.pem"), read_file(fleet.folder / "ca.key"))
    server = make_server_certificate(authority, _hosts(fleet.host), days)
    key = fleet.folder / "server.key.new"
    key.unlink(missing_ok=True)
    write_new(key, server.key, 0o600)
    write_atomically(fleet.folder / "server.pem", server.certificate)
    key.replace(fleet.folder / "server.key")  # renaming needs no space, so a full disk leaves both unchanged


def _hosts(host: str) -> list[str]:
    """Return the server's names, for nodes and on its own machine."""
    return list(dict.fromkeys([host, "localhost", "127.0.0.1", "::1"]))


def _init_node(folder: Path, plan: FleetPlan, authority: bytes, number: int) -> dict[str, Any]:
    """Write one node's folder; return its row of ``fleet.toml``."""
    name = f"node-{number}"
    place = folder / "nodes" / name
    place.mkdir(parents=True)
    place.chmod(0o700)
    private, public = make_key_pair(name)
    clients = list(range(number, plan.clients or plan.nodes, plan.nodes))
    shown = f"[{plan.host}]" if ":" in plan.host else plan.host
    table = {"server": f"{shown}:{plan.port}", "name": name, "clients": clients, "max_mib": plan.max_mib}
    write_new(place / "node.toml", tomli_w.dumps(table).encode(), 0o644)
    write_new(place / "node.key", private, 0o600)
    write_new(place / "ca.pem", authority, 0o644)
    agreed = {} if plan.samples is None else {"samples": [plan.samples[client] for client in clients]}
    return {"name": name, "clients": clients, **agreed, "public_key": public}
