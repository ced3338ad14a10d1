"""`atoll watch`."""

import shlex
import webbrowser
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import app, err, option_words, out, refuse_below_file
from atoll.cli.interrupts import Interrupts
from atoll.cli.report_command import OverlayOption, TargetOption, check_targets


@app.command("watch")
def watch_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of runs.")],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to serve on; 0 takes any free one.")] = 8377,
    host: Annotated[
        str, typer.Option(help="Address to serve on; any but 127.0.0.1 lets other machines look.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    target: TargetOption = None,
    overlay: OverlayOption = False,
) -> None:
    """Show the page of `atoll report --html` while runs go on, kept up to date. It only reads.

    Example: atoll watch runs/quickstart --no-browser
    """
    check_targets(target)
    for folder in folders:
        refuse_below_file(folder)
    from atoll.report.page_server import Watch, make_server

    options = option_words(("--target", target), ("--overlay", overlay))
    command = shlex.join(["atoll", "watch", *map(str, folders), *options])
    server = make_server(Watch(folders, target or None, command, overlay), host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/"
    if not _is_loopback(host):
        err.print(f"warning: --host {host}: anyone who can reach this machine can read these runs")
    with Interrupts() as interrupts, server:
        out.print(f"Watching at {url} (Ctrl-C stops)")
        for folder in (each for each in folders if not each.is_dir()):
            out.print(f"{folder} does not exist yet; its runs will be shown once it does")
        if browser:
            webbrowser.open(url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            err.print("stopped watching; the runs go on")
    raise typer.Exit(interrupts.exit_code)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
