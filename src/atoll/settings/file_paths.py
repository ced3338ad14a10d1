"""Paths in an experiment file: looked for beside the file first, then in the working folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atoll.settings.validation import Settings

_SECTIONS = ("data", "model", "clustering", "network", "faults")
_FILES = ("file", "edges", "time_limit")  # if they are texts, besides those that end in _file
_KEYS = (*_FILES, "root", "start")
_OR_NAMES = ("tokenizer", "path")  # folders, or names on Hugging Face's hub


def files_in(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each setting that names a file, such as network.edges, and the file; not data.root and model.start."""
    for section in _SECTIONS:
        for key, value in getattr(settings, section).model_dump().items():
            if isinstance(value, str) and value and (key in _FILES or key.endswith("_file")):
                yield f"{section}.{key}", value


def located(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return an experiment file's table with its relative paths as they are found from the working folder.

    What is in neither place becomes the absolute path beside the file, in `folder`, which an error names.
    """
    return {key: _located(key, held, folder) for key, held in table.items()}


def _located(key: str, held: Any, folder: Path) -> Any:
    if isinstance(held, list):  # panels and runs
        return [located(each, folder) if isinstance(each, Mapping) else each for each in held]
    if not isinstance(held, Mapping):
        return held
    if key in _SECTIONS:
        return {k: _path(k, v, folder) for k, v in held.items()}
    return located(held, folder)


def _path(key: str, value: Any, folder: Path) -> Any:
    is_path = key in (*_KEYS, *_OR_NAMES) or key.endswith("_file")
    if not is_path or not isinstance(value, str) or not value or value.startswith("~"):
        return value
    beside = folder / value
    if beside.exists():
        return str(beside)
    return value if key in _OR_NAMES or Path(value).exists() else str(beside.absolute())
