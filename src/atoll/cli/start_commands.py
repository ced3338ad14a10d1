"""`atoll new`, `atoll recipes` and `atoll settings`: where to start from."""

import shlex
import sys
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from atoll.cli.common import app, make_app, out, print_json, refuse_below_file
from atoll.cli.options import JsonOption
from atoll.support.errors import InputError
from atoll.support.files import make_folder, write_atomically

_FILES = {"experiment.toml": "experiment.toml", "own.py": "own.py.txt", "test_own.py": "test_own.py.txt"}

recipes_app = make_app(invoke_without_command=True)
app.add_typer(recipes_app, name="recipes")


@app.command()
def new(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Start your own experiment: its file, a module with one function of each kind, and a test of both.

    Example: atoll new mine && atoll run mine/experiment.toml
    """
    refuse_below_file(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder}: is not empty; give a new or empty folder")
    make_folder(folder)
    templates = resources.files(__package__) / "templates"
    for name, template in _FILES.items():
        write_atomically(folder / name, (templates / template).read_bytes())
        out.print(f"wrote {folder / name}")
    run, test = ["atoll", "run", str(folder / "experiment.toml")], ["pytest", str(folder)]
    out.print(f"Run it: {shlex.join(run)}; test it: {shlex.join(test)}")


@recipes_app.callback()
def recipes(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the built-in experiments; `show` prints one.

    Example: atoll recipes show quickstart
    """
    if context.invoked_subcommand:
        return
    from atoll.settings.experiment_file import read_experiment, recipe_names

    rows = []
    for name in recipe_names():
        table = read_experiment(name)
        scales = list({"paper": None, **table["scales"]}) if "scales" in table else []
        rows.append({"name": name, "description": table.get("description", ""), "scales": scales})
    if as_json:
        print_json(rows)
        return
    shown = Table("name", "scales", "what it shows", box=None)
    for row in rows:
        shown.add_row(row["name"], ", ".join(row["scales"]), row["description"])
    out.print(shown)


@recipes_app.command("show")
def recipes_show(name: Annotated[str, typer.Argument(metavar="NAME", help="The recipe's name.")]) -> None:
    """Print a recipe's file, to run as it is or as a start for your own.

    Example: atoll recipes show quickstart > mine.toml
    """
    from atoll.settings.experiment_file import recipe_names, recipe_path
    from atoll.support.wording import unknown

    path = recipe_path(name)
    if path is None:
        raise InputError(f"recipe {name!r}: {unknown(name, recipe_names())}")
    sys.stdout.write(path.read_text(encoding="utf-8"))


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
