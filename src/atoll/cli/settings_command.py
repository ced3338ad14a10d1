"""`atoll settings`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from atoll.cli.common import app, out, print_json
from atoll.cli.options import JsonOption


def _complete_section(incomplete: str) -> list[str]:
    """Return the sections that start with this, and the names that settings accept."""
    from atoll.settings.choices import CHOICES
    from atoll.settings.validation import Settings

    names = [*Settings.model_fields, *(name for choice in CHOICES for name in choice.functions)]
    return sorted({name for name in names if name.startswith(incomplete)})


@app.command()
def settings(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SECTION|CHOICE]",
            help="A section, such as local; a name that a setting accepts, such as fedavg; or one setting, such as "
            "local.lr.",
            autocompletion=_complete_section,
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
    for each in listed:
        table.add_row(*map(escape, (each.name, each.default, each.kind, each.meaning)))
    out.print(table)
