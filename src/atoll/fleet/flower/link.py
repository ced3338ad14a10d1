"""Flower's superlink as a separate process, without PyTorch.

It is Flower's own server with a guard in front. It ends with its standard input, so that nothing is left behind when
the parent process is killed.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import ssl
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.fleet.flower.call_ledger import FlowerLedger, compact
from atoll.fleet.flower.connections import Connections
from atoll.fleet.flower.guard import Guard
from atoll.support.process import end_with_input

if TYPE_CHECKING:
    import uvicorn

LOOK_SECONDS = 1.0
"""How often the superlink looks for a renewed certificate."""
UNREADABLE = 78
"""The exit status if the database is damaged, or a newer Flower's."""


def _app_of(folder: Path, host: str, port: int, database: Path) -> Any:
    """Return Flower's application: keys required, database in the fleet's folder, no subprocesses."""
    import flwr.superlink.cli.flower_superlink  # noqa: F401  (the package's own name for it is a function)
    from flwr.superlink.main import create_app

    sys.argv = [
        "flower-superlink", "--isolation", "process", "--enable-supernode-auth",
        "--database", str(database), "--ssl-certfile", str(folder / "server.pem"),
        "--ssl-keyfile", str(folder / "server.key"), "--ssl-ca-certfile", str(folder / "ca.pem"),
        "--host", host, "--port", str(port),
    ]  # fmt: skip
    module = sys.modules["flwr.superlink.cli.flower_superlink"]
    return create_app(module._parse_superlink_lifespan_config(), module.SuperLinkLifespan)


def _renewing(config: Any, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """Return the TLS context; new connections get a renewed certificate as soon as it and its key are in the folder."""
    context, files = make(), (config.ssl_certfile, config.ssl_keyfile)
    loop = asyncio.get_running_loop()

    def look(before: list[int]) -> None:
        with contextlib.suppress(ssl.SSLError, OSError):  # one of them may still be the old one's
            if (now := [os.stat(file).st_mtime_ns for file in files]) != before:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*files)
                context.load_cert_chain(*files)
                before = now
        loop.call_later(LOOK_SECONDS, look, before)

    look([])
    return context


def main() -> None:
    """Serve until standard input ends or a signal comes."""
    given = _arguments()
    threading.Thread(target=end_with_input, daemon=True).start()
    from atoll.fleet.flower.patience import PatientServer

    os.umask(0o077)
    app, ledger = _open(given)
    logging.getLogger("flwr").setLevel(logging.WARNING)  # it would write a line per message
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS names no number
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = Connections(given.nodes)
    secret = (given.folder / "secret").read_text().strip()
    guard = Guard(app, secret, ledger, given.max_bytes, given.open, connections.know)
    PatientServer(_configuration(guard, given), connections).run()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Flower's superlink for one fleet; started by atoll fleet server.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("max_bytes", type=int)
    parser.add_argument("nodes", type=int)
    parser.add_argument("--open", action="store_true", help="started again: let nodes in, and keep their messages")
    return parser.parse_args()


def _open(given: argparse.Namespace) -> tuple[Any, FlowerLedger]:
    """Return Flower's application and what is known of its calls; end the process if the database is unreadable."""
    from alembic.util import CommandError
    from sqlalchemy.exc import DatabaseError, OperationalError

    database = given.folder / "state" / "flower.db"
    database.touch()
    database.chmod(0o600)
    try:
        app = _app_of(given.folder, given.host, given.port, database)
        ledger = FlowerLedger(app)
    except (CommandError, DatabaseError) as error:
        if isinstance(error, OperationalError):  # such as a full disk
            raise
        traceback.print_exc()
        os._exit(UNREADABLE)
    if not given.open:  # whoever expected pending replies is gone
        ledger.forget_all()
        compact(database)
    return app, ledger


def _configuration(guard: Guard, given: argparse.Namespace) -> "uvicorn.Config":
    import uvicorn

    return uvicorn.Config(
        guard,
        host=given.host,
        port=given.port,
        ws="none",
        proxy_headers=False,  # a connection is known by its own address
        timeout_keep_alive=75,  # rejected callers are cut off immediately
        ssl_certfile=given.folder / "server.pem",
        ssl_keyfile=str(given.folder / "server.key"),
        ssl_context_factory=_renewing,
        log_level="warning",
        access_log=False,
        server_header=False,
    )


if __name__ == "__main__":
    main()
