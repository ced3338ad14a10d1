"""Paths in an experiment file: looked for beside the file first, then in the working folder."""

import re
from collections.abc import Callable, Iterator, Mapping
from os.path import expanduser
from pathlib import Path
from typing import Any

from atoll.settings.sections import Sections

_SECTIONS = ("data", "model", "clustering", "network", "faults")
_FILES = ("file", "edges", "time_limit")  # if they are texts, besides those that end in _file
_OR_NAMES = ("tokenizer", "path")  # folders, or names on Hugging Face's hub
PATHS = "|".join((*_FILES, *_OR_NAMES, "root", "start", r"\w*_file"))  # what matches them all


def files_in(settings: Sections) -> Iterator[tuple[str, str]]:
    """Yield each setting that names a file, such as network.edges, and the file; not data.root and model.start."""
    for section in _SECTIONS:
        for key, value in getattr(settings, section).model_dump().items():
            if isinstance(value, str) and value and (key in _FILES or key.endswith("_file")):
                yield f"{section}.{key}", value


def with_home(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of settings whose paths have the user's home folder in the place of ~."""
    return _changed(table, lambda key, path: expanduser(path))


def located(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return an experiment file's table with its relative paths as they are found from the working folder.

    What is in neither place becomes the absolute path beside the file, in `folder`, which an error names.
    """

    def locate(key: str, path: str) -> str:
        beside = folder / expanduser(path)
        if beside.exists():
            return str(beside)
        return path if key in _OR_NAMES or Path(path).exists() else str(beside.absolute())

    return _changed(table, locate)


def _changed(table: Mapping[str, Any], change: Callable[[str, str], str], section: str = "") -> dict[str, Any]:
    changed = dict(table)
    for key, held in table.items():
        if isinstance(held, Mapping):
            changed[key] = _changed(held, change, key)
        elif isinstance(held, list):  # panels and runs
            changed[key] = [_changed(each, change) if isinstance(each, Mapping) else each for each in held]
        elif section in _SECTIONS and isinstance(held, str) and held and re.fullmatch(PATHS, key):
            is_path = key != "start" or section == "model"  # elsewhere a kind of start, or a date
            changed[key] = change(key, held) if is_path else held
    return changed
