"""The tables of options in cli.md, made from the commands themselves; see docs/lists.py.

A group, such as `atoll data`, has one table of all its commands.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import typer

import atoll.cli  # noqa: F401  (registers the commands)
from atoll.cli.common import app


def options_table(path: str) -> str:
    """Return the options of a command, such as ``data list``, or of a group with the commands below it.

    Raises:
        KeyError: there is no such command.
    """
    command: Any = typer.main.get_command(app)
    for name in path.split():
        command = command.commands[name]
    below = getattr(command, "commands", {})
    if not below:
        return _as_table(("Option", "Meaning"), _rows(command))
    rows = [("", *row) for row in _rows(command)]
    rows += [(f"`{name}`", *row) for name, each in below.items() for row in _rows(each)]
    return _as_table(("Command", "Option", "Meaning"), rows)


def _rows(command: Any) -> Iterator[tuple[str, str]]:
    """Return (option or argument, what its help says), in the order of the help."""
    context = typer.Context(command)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            if parameter.help:  # some versions of Typer lose it
                yield f"`{parameter.make_metavar(context)}`", _sentence(parameter.help)
        elif not parameter.hidden:
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            value = "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
            default = parameter.default
            shown = default is not None and not parameter.is_flag and parameter.show_default
            yield f"`{names}{value}`", _sentence(parameter.help or "") + (f" Default: `{default}`." if shown else "")


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _as_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    rows = list(rows)
    if not rows:
        return "It has no options."
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
