"""`atoll new`."""

import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import app, out, refuse_below_file
from atoll.support.errors import InputError
from atoll.support.files import make_folder, write_atomically

_FILES = {"experiment.toml": "experiment.toml", "own.py": "own.py.txt", "test_own.py": "test_own.py.txt"}


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
