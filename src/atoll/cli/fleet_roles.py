"""The members of a fleet, as `atoll fleet init` and `atoll fleet status` show them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from atoll.support.errors import refusing
from atoll.support.files import whole_lines
from atoll.support.untrusted import parse_json

if TYPE_CHECKING:
    from atoll.fleet.folder.configuration import FleetConfiguration

CERTIFICATES = {"authority": "ca.pem", "server": "server.pem"}  # in the fleet's folder
_ONE_EACH = 20  # the most nodes that a new fleet's table lists


def roles_of(fleet: "FleetConfiguration") -> list[dict[str, Any]]:
    """Return the fleet's authority and its server: name, files, and the day when their certificates expire."""
    from atoll.fleet.folder.certificates import validity

    rows = [
        {"role": "authority", "node": fleet.folder.name, "has": "ca.key, offline"},
        {"role": "server", "node": f"{fleet.host}:{fleet.port}", "has": "the folder without nodes/ and ca.key"},
    ]
    return [row | {"expires": f"{validity(fleet.folder / CERTIFICATES[row['role']])[1]:%Y-%m-%d}"} for row in rows]


def new_fleet_table(fleet: "FleetConfiguration") -> Table:
    """Return who has what in a new fleet, and until when; nodes' keys do not expire, but their authority does."""
    authority, server = roles_of(fleet)
    table = Table("role", "name", "clients", "has", "expires", box=None)
    for row in (authority, server):
        table.add_row(row["role"], row["node"], "", row["has"], row["expires"])
    for node in fleet.nodes[:_ONE_EACH]:
        clients = ", ".join(map(str, node.clients))
        table.add_row("node", node.name, clients, f"nodes/{node.name}/", authority["expires"])
    if len(fleet.nodes) > _ONE_EACH:
        table.add_row("node", f"and {len(fleet.nodes) - _ONE_EACH} more", "", "", authority["expires"])
    return table


def status_table(fleet: "FleetConfiguration", rows: Sequence[dict[str, Any]]) -> Table:
    """Return who is online: the server, which has answered, and the nodes."""
    columns = {"role": "role", "node": "name", "clients": "clients", "status": "status", "since": "since, UTC"}
    columns |= {"last_seen": "seen ago", "expires": "expires"}
    if rows and "strikes" in rows[0]:
        columns |= {"strikes": "late", "pause": "to skip", "refused": "refused or missing"}
    table = Table(*columns.values(), box=None)
    _, server = roles_of(fleet)
    for row in (server | {"clients": (), "status": "online"}, *rows):
        refused = ", ".join(f"{reason} {count}" for reason, count in sorted(row.get("refused", {}).items()))
        cells = row | {"clients": ", ".join(map(str, row["clients"])), "refused": refused}
        cells["since"] = str(row.get("since") or "")[:19].replace("T", " ")
        if seen := row.get("last_seen"):
            ago = (datetime.now(UTC) - datetime.fromisoformat(seen)).total_seconds()
            cells["last_seen"] = str(timedelta(seconds=max(0, int(ago))))
        table.add_row(*(str(cells.get(name) or "") for name in columns))
    return table


def status_rows(fleet: "FleetConfiguration", folder: Path | None = None) -> list[dict[str, Any]]:
    """Return a row for each node: who it is, whether it is present, and how it does in the run in this folder."""
    from atoll.fleet.flower.calls import status_of_nodes

    rows = status_of_nodes(fleet)
    authority, _ = roles_of(fleet)
    for row in rows:
        row |= {"role": "node", "expires": authority["expires"]}
    if folder is not None:
        add_run(rows, folder)
    return rows


def add_run(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Add the most consecutive late replies of a node's clients, their longest pause, and refused results by reason."""
    from atoll.fleet.server.attendance import Standing, read_strikes
    from atoll.fleet.server.notices import read_refused
    from atoll.runs.run_files import REFUSED, STRIKES

    standings, refused = read_strikes(folder / STRIKES), read_refused(folder / REFUSED)
    for row in rows:
        own = [standings.get(client, Standing()) for client in row["clients"]]
        row |= {"strikes": max(each.strikes for each in own), "pause": max(each.pause for each in own)}
        row |= {"refused": dict(refused.get(row["node"], {}))}


def last_row(folder: Path) -> dict[str, Any]:
    """Return a run's last row of metrics; empty before the first."""
    path = folder / "metrics.jsonl"
    with refusing(f"{path} cannot be read, or is damaged", ValueError, TypeError):
        lines = whole_lines(path, folder) if path.exists() else []
        return dict(parse_json(lines[-1])) if lines else {}


def so_far(row: Mapping[str, Any]) -> str:
    """Return a row of metrics as a sentence for whoever watches."""
    shown = {"train_loss": "loss", "test_accuracy": "accuracy", "epsilon": "epsilon spent"}
    values = [f"{title} {row[name]:.4g}" for name, title in shown.items() if isinstance(row.get(name), int | float)]
    return f"event {row.get('event')}, round {row.get('round')}: {', '.join(values)}" if row else "no event yet"
