"""The members of a fleet, as `atoll fleet init` and `atoll fleet status` show them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from atoll.fleet.folder.configuration import FleetConfiguration

_ONE_EACH = 20  # the most nodes that a new fleet's table lists


def roles_of(fleet: "FleetConfiguration") -> list[dict[str, Any]]:
    """Return the fleet's authority and its server: name, files, and the day when their certificates expire.

    Raises:
        InputError: if one has expired.
    """
    from atoll.fleet.folder.certificates import validity

    server = f"{fleet.host}:{fleet.port}"
    return [
        {"role": role, "node": name, "has": has, "expires": f"{validity(fleet.folder / file)[1]:%Y-%m-%d}"}
        for role, name, has, file in (
            ("authority", fleet.folder.name, "ca.key, offline", "ca.pem"),
            ("server", server, "the folder without nodes/ and ca.key", "server.pem"),
        )
    ]


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
    columns = {"role": "role", "node": "name", "clients": "clients", "status": "status", "since": "since"}
    columns |= {"expires": "expires"}
    columns |= {"strikes": "late in a row", "pause": "requests to skip"} if rows and "strikes" in rows[0] else {}
    table = Table(*columns.values(), box=None)
    _, server = roles_of(fleet)
    for row in (server | {"clients": (), "status": "online"}, *rows):
        cells = row | {"clients": ", ".join(map(str, row["clients"]))}
        table.add_row(*(str(cells.get(name) or "") for name in columns))
    return table


def add_roles(rows: Sequence[dict[str, Any]], fleet: "FleetConfiguration") -> None:
    """Add to each node's row its role, and the day when the authority that it trusts expires."""
    authority, _ = roles_of(fleet)
    for row in rows:
        row |= {"role": "node", "expires": authority["expires"]}


def add_strikes(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Add to each node's row the most consecutive late replies of its clients, and their longest pause."""
    from atoll.fleet.server.attendance import Standing, read_strikes
    from atoll.runs.run_folder import STRIKES

    standings = read_strikes(folder / STRIKES)
    for row in rows:
        own = [standings.get(client, Standing()) for client in row["clients"]]
        row |= {"strikes": max(each.strikes for each in own), "pause": max(each.pause for each in own)}
