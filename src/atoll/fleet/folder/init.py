"""Writing a fleet's folder: ``atoll fleet init``, ``renew``, ``revoke`` and ``rotate``."""

import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import tomli_w

from atoll.fleet.folder.certificates import (
    Certified,
    make_authority,
    make_key_pair,
    make_server_certificate,
    require_valid,
    validity,
)
from atoll.fleet.folder.configuration import FILE, PEERS, FleetConfiguration, read_fleet
from atoll.fleet.folder.peers import peers_as_toml
from atoll.support.errors import AtollError, InputError, RunError, refusing
from atoll.support.files import make_folder, write_atomically, write_new
from atoll.support.untrusted import parse_toml

AUTHORITY_DAYS = 3650
# Before a certificate's end; at most a third of its life.
_RENEWED_BEFORE, _TOLD_BEFORE = timedelta(days=30), timedelta(days=180)


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
    server = make_server_certificate(authority, _hosts(plan.host, plan.listen), plan.days)
    make_folder(folder)
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
    with refusing(f"{fleet.folder / 'ca.key'}: cannot be read", hint="; put it back until the certificate is made"):
        authority = Certified(require_valid(fleet.folder / "ca.pem"), (fleet.folder / "ca.key").read_bytes())
    server = make_server_certificate(authority, _hosts(fleet.host, fleet.listen), days)
    key = fleet.folder / "server.key.new"
    key.unlink(missing_ok=True)
    write_new(key, server.key, 0o600)
    write_atomically(fleet.folder / "server.pem", server.certificate)
    key.replace(fleet.folder / "server.key")  # renaming needs no space, so a full disk leaves both unchanged


def _hosts(host: str, listen: str) -> list[str]:
    """Return the server's names: for nodes, and on its own machine, which calls it where it listens."""
    own = [] if listen in ("0.0.0.0", "::") else [listen]
    return list(dict.fromkeys([host, "localhost", "127.0.0.1", "::1", *own]))


def _init_node(folder: Path, plan: FleetPlan, authority: bytes, number: int) -> dict[str, Any]:
    """Write one node's folder; return its row of ``fleet.toml``."""
    name = f"node-{number}"
    place = folder / "nodes" / name
    make_folder(place, 0o700)
    private, public = make_key_pair(name)
    clients = list(range(number, plan.clients or plan.nodes, plan.nodes))
    shown = f"[{plan.host}]" if ":" in plan.host else plan.host
    table = {"server": f"{shown}:{plan.port}", "name": name, "clients": clients, "max_mib": plan.max_mib}
    write_new(place / "node.toml", tomli_w.dumps(table).encode(), 0o644)
    write_new(place / "node.key", private, 0o600)
    write_new(place / "ca.pem", authority, 0o644)
    agreed = {} if plan.samples is None else {"samples": [plan.samples[client] for client in clients]}
    return {"name": name, "clients": clients, **agreed, "public_key": public}


class Renewal:
    """Looks at the certificates in a fleet's folder whenever it is called.

    The server's is renewed before it expires, if ``ca.key`` is there; otherwise its operator is told. So is that of an
    authority that ends, since each node's owner must get the next one first.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        """Watch this folder; `tell` receives what was done or, once a day, what must be done."""
        self._folder, self._tell = folder, tell
        self._told: date | None = None

    def __call__(self) -> None:
        """Renew the certificate, if it is time."""
        path, now = self._folder / "server.pem", datetime.now(UTC)
        if self._told == now.date():
            return
        begin, end = validity(self._folder / "ca.pem")
        if end - now < min(_TOLD_BEFORE, (end - begin) / 3):
            self._told = now.date()
            self._tell(f"warning: {self._folder / 'ca.pem'}: the authority ends on {end:%d %B %Y}; see the runbook")
        begin, end = validity(path)
        if end - now > min(_RENEWED_BEFORE, (end - begin) / 3):
            return
        if (self._folder / "ca.key").exists():
            try:
                renew_certificate(self._folder, max(1, (end - begin).days))
                self._tell(f"{path}: would have expired on {end:%d %B %Y}, and has been renewed")
                return
            except AtollError as error:
                self._tell(f"warning: {error}")
        self._told = now.date()
        renew = f"atoll fleet renew --config {self._folder}, with ca.key back in the folder, makes a new one"
        self._tell(f"warning: {path}: the certificate expires on {end:%d %B %Y}; {renew}")


def revoke(folder: Path, name: str) -> FleetConfiguration:
    """Remove a node from ``fleet.toml``; return the new configuration. Comments in the file are lost."""
    path, table, row = _find_node(folder, name)
    table["nodes"].remove(row)
    _write_table(path, table)
    return read_fleet(folder)


def rotate(folder: Path, name: str) -> tuple[FleetConfiguration, Path]:
    """Replace a node's key; return the new configuration and the private key's file."""
    path, table, row = _find_node(folder, name)
    private, row["public_key"] = make_key_pair(name)
    key = path.parent / "nodes" / name / "node.key"
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = key.with_suffix(".new")
    new.unlink(missing_ok=True)
    write_new(new, private, 0o600)
    _write_table(path, table)
    new.replace(key)  # renaming needs no space, so a full disk leaves the old key in both places
    return read_fleet(folder), key


def _write_table(path: Path, table: dict[str, Any]) -> None:
    """Write ``fleet.toml``, and ``peers.toml`` in nodes' folders on this machine; owners elsewhere must be informed."""
    write_atomically(path, tomli_w.dumps(table).encode())
    for row in table["nodes"]:
        if (place := path.parent / "nodes" / row["name"]).is_dir():
            write_atomically(place / PEERS, peers_as_toml(table["nodes"]))


def _find_node(folder: Path, name: str) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return the file, its table, and a node's row."""
    path = read_fleet(folder).folder / FILE
    table = parse_toml(path.read_bytes())
    for row in table["nodes"]:
        if row["name"] == name:
            return path, table, row
    known = ", ".join(row["name"] for row in table["nodes"][:8])
    raise InputError(f"{path}: has no node {name!r}; it has {known or 'none'}")
