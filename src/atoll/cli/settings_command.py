"""`atoll settings`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from atoll.cli.common import app, out, print_json
from atoll.cli.options import JsonOption


@app.command()
def settings(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SECTION|CHOICE]",
            help="A section, such as local; a name that a setting accepts, such as fedavg; or one setting, such as "
            "local.lr.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the settings of experiments: default, type and meaning.

    Example: atoll settings fedavg
    """
    from atoll.settings.setting_list import find_settings, sections, settings_in

    listed = [each for section in sections() for each in settings_in(section)] if name is None else find_settings(name)
    if as_json:
        print_json(list(map(asdict, listed)))
        return
    table = Table("setting", "default", "type", "meaning", box=None)
    table.columns[0].no_wrap = True
    for each in listed:
        table.add_row(each.name, each.default, each.kind, each.meaning)
    out.print(table)
