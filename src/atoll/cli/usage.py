"""Usage errors in one sentence, with a guess at what users of other programs mean."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from atoll.cli.options import setting_paths
from atoll.settings.experiment_file import recipe_names
from atoll.support.wording import nearest

_COMMANDS = {"help": "--help", "list": "recipes", "ls": "recipes", "init": "new", "create": "new", "start": "run"}
_COMMANDS |= {"train": "run", "fit": "run", "simulate": "run", "plot": "report", "show": "report", "tune": "sweep"}
_UNKNOWN = re.compile(r"No such command '([^']*)'")
_NUMBER = re.compile(r"Invalid value for '(.*)': '(.*)' is not a valid (float|integer)(?: range)?")
_LEAST = re.compile(r"Invalid value for '(.*)': (\S+) is not in the range x>=(\d+)")
_RANGE = re.compile(r"Invalid value for '(.*)': (\S+) is not in the range (\d+)<=x<=(\d+)")


def tell_usage(error: Any, words: Sequence[str]) -> str:
    """Return click's usage error as a sentence; `words` is the command line."""
    context = getattr(error, "ctx", None)
    if context is None:
        return str(error.format_message()).rstrip(".")
    see = f"; see {context.command_path} --help"
    takes_settings = any("--set" in parameter.opts for parameter in context.command.params)
    option = str(getattr(error, "option_name", ""))
    if takes_settings and option and (path := _setting(option)):
        return f"No such option {option!r}; a setting is given as --set {path}=VALUE{see}"
    if option and (command := nearest(option.lstrip("-"), getattr(context.command, "commands", ()), cutoff=0.75)):
        return f"No such option {option!r}; did you mean {context.command_path} {command}?{see}"
    message = error.format_message().rstrip(".")
    if unknown := _UNKNOWN.match(message):  # without the suggestions that click and Typer add
        return f"{unknown[0]}{_meant(unknown[1], context)}{see}"
    if odd := _NUMBER.fullmatch(message):
        return f"{odd[1]} {odd[2]}: must be a {'whole ' * (odd[3] == 'integer')}number{see}"
    if odd := _LEAST.fullmatch(message):
        return f"{odd[1]} {odd[2]}: must be at least {odd[3]}"
    if odd := _RANGE.fullmatch(message):
        return f"{odd[1]} {odd[2]}: must be from {odd[3]} to {odd[4]}{see}"
    return f"{message}{_spaced(words) if 'extra argument' in str(error) else ''}{see}"


def _meant(command: str, context: Any) -> str:
    """Suggest a command: `run` for a recipe or file, the one that other programs call so, or the nearest."""
    if context.parent is None and (command in recipe_names() or command.endswith(".toml")):
        return f"; did you mean atoll run {command}?"
    others = _COMMANDS if context.parent is None else {}
    known = others.get(command) or nearest(command, context.command.commands)
    return "" if known is None else f"; did you mean {context.command_path} {known}?"


def _setting(option: str) -> str | None:
    """Return the setting that an option probably means, if there is one."""
    ends = {path.rpartition(".")[2]: path for path in reversed(setting_paths())}
    name = nearest(option.lstrip("-").replace("-", "_"), ends, cutoff=0.9)
    return None if name is None else ends[name]


def _spaced(words: Sequence[str]) -> str:
    """Suggest how to join the words of an option's value, if spaces split it."""
    for (option, word), after in zip(pairwise(words), [*words[2:], ""], strict=False):
        if option in ("--set", "--over") and after and not after.startswith("-"):
            joined = f" {option} " if "=" in after else "," if option == "--over" else " " if "=" in word else "="
            return f"; give {option} " + (f'"{word} {after}"' if joined == " " else f"{word}{joined}{after}")
    return ""
