"""`atoll fleet`: set up a fleet, manage its keys, and see who is online; `fleet_run_commands` runs experiments."""

import time
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.common import app, make_app, out, print_json, refuse_below_file
from atoll.cli.fleet_roles import last_row, new_fleet_table, so_far, status_rows, status_table
from atoll.cli.interrupts import Interrupts
from atoll.cli.options import JsonOption
from atoll.fleet.folder.certificates import require_flower
from atoll.support.errors import InputError
from atoll.support.wording import counted

if TYPE_CHECKING:
    from atoll.fleet.folder.configuration import FleetConfiguration

fleet_app = make_app(invoke_without_command=True)
app.add_typer(fleet_app, name="fleet")

WATCH_SECONDS = 2.0
ConfigDir = Annotated[Path, typer.Option("--config", metavar="DIR", help="The folder that atoll fleet init made.")]


@fleet_app.callback()
def fleet(context: typer.Context) -> None:
    """Run an experiment on real machines.

    Example: atoll fleet up quickstart --only FedAvg --nodes 4
    """
    if not context.invoked_subcommand:
        out.print(context.get_help())


@fleet_app.command("init")
def init(
    nodes: Annotated[int, typer.Option(min=1, max=10_000, help="How many nodes to make keys for.")],
    host: Annotated[str, typer.Option(help="The host name or address at which nodes reach the server.")],
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="A folder that does not exist yet.")] = Path("fleet"),
    listen: Annotated[str, typer.Option(help="The address to listen on; 127.0.0.1 behind a proxy.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port, for HTTPS; the only one used.")] = 9092,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Days the server's certificate is valid.")] = 365,
    max_mib: Annotated[int, typer.Option(min=1, max=1024, help="The largest reply of a node, in MiB.")] = 256,
) -> None:
    """Make a new fleet: certificates, a key pair for each node, and the configuration of server and nodes.

    Example: atoll fleet init fleet --nodes 4 --host fleet.example.org
    """
    require_flower()
    from atoll.fleet.folder.init import FleetPlan, init_fleet

    for name, place in (("host", host), ("listen", listen)):
        if not _is_host(place):
            raise InputError(f"--{name} {place!r}: must be a host name (in ASCII) or an address, without a port")
    refuse_below_file(folder)
    made = init_fleet(folder, FleetPlan(nodes, host, listen=listen, port=port, days=days, max_mib=max_mib))
    out.print(new_fleet_table(made))
    out.print(f"{folder}: stays on the server; better keep its ca.key offline")
    out.print(f"{folder / 'nodes'}: give each node its own folder, over a channel you trust")


def _is_host(text: str) -> bool:
    """Return whether this is a name or an address, without a port or brackets."""
    with suppress(ValueError):
        ip_address(text)
        return True
    return bool(text) and text.isascii() and not any(each in text for each in "/ \t[]:")


@fleet_app.command("renew")
def renew(
    config: ConfigDir,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Days the new certificate is valid.")] = 365,
) -> None:
    """Make a new certificate for the server before the old one expires; ca.key must be back in the folder.

    A server does so by itself in the last month, if ca.key is there.

    Example: atoll fleet renew --config fleet
    """
    require_flower()
    from atoll.fleet.folder.init import renew_certificate

    renew_certificate(config, days)
    out.print(f"{config / 'server.pem'}: valid for {counted(days, 'day')}; a running server takes it at once")


NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name in fleet.toml.")]


@fleet_app.command("revoke")
def revoke(name: NodeName, config: ConfigDir) -> None:
    """Revoke a node's key: a running server rejects it from now on.

    Example: atoll fleet revoke node-3 --config fleet
    """
    require_flower()
    from atoll.fleet.folder import init as keys

    left = keys.revoke(config, name)
    out.print(f"{config / 'fleet.toml'}: {name} is revoked; {_effect_on(left)}")


@fleet_app.command("rotate")
def rotate(name: NodeName, config: ConfigDir) -> None:
    """Give a node a new key: a running server rejects its old one from now on.

    Example: atoll fleet rotate node-3 --config fleet
    """
    require_flower()
    from atoll.fleet.folder import init as keys

    now, key = keys.rotate(config, name)
    out.print(f"{config / 'fleet.toml'}: {name} has a new key; {_effect_on(now)}")
    out.print(f"{key}: copy it to the node's machine, replacing the old one, and restart the node")


@fleet_app.command("status")
def status(
    config: ConfigDir,
    folder: Annotated[
        Path | None, typer.Option("--out", help="A run's folder: also show how far it is, and who was late or refused.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it every two seconds, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the server and nodes of a running fleet: status, since when, last seen, expiry, and who is paused.

    With a run's folder also: its last row of metrics, epsilon spent, and each node's refused or missing results.
    Example: atoll fleet status --config fleet --out runs/fleet --watch
    """
    require_flower()
    from atoll.fleet.folder.configuration import read_fleet

    configuration = read_fleet(config)
    if watch and as_json:
        raise InputError("--watch and --json: give one of them, not both")
    if as_json:
        print_json(status_rows(configuration, folder))
    elif not watch:
        _show_status(configuration, folder)
    else:
        _watch(config, folder)


def _watch(config: Path, folder: Path | None) -> None:
    from atoll.fleet.folder.configuration import read_fleet

    with Interrupts() as interrupts, suppress(KeyboardInterrupt):
        while True:
            if out.is_terminal:
                out.clear()
            try:
                _show_status(read_fleet(config), folder)  # its keys may have changed
            except InputError as error:  # the server may come back
                out.print(str(error))
            time.sleep(WATCH_SECONDS)
    raise typer.Exit(interrupts.exit_code)


def _show_status(configuration: "FleetConfiguration", folder: Path | None) -> None:
    table = status_table(configuration, status_rows(configuration, folder))
    told = None if folder is None else f"{folder}: {so_far(last_row(folder))}"
    out.print(table)
    if told:
        out.print(told)


def _effect_on(fleet: "FleetConfiguration") -> str:
    """Tell a running server about changed keys; return when they take effect, in words."""
    from atoll.fleet.flower.calls import register_nodes
    from atoll.fleet.flower.wire import is_transient

    try:
        register_nodes(fleet)
    except Exception as error:
        if not is_transient(error):
            return f"what answers on port {fleet.port} could not be told ({type(error).__name__}: {error})"
        return "no server is running; the next one will use the change"
    return "the running server has been told"
