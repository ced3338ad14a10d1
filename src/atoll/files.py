"""Files that are written whole or not at all."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from atoll.errors import RunError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: aside first, flushed to disk, then renamed, and that flushed too.

    Raises:
        RunError: the disk is full or read-only, or the folder cannot be written to.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            aside.unlink()


def _flush_folder(path: Path) -> None:
    """Flush the names in a folder to disk, so that a file written later cannot outlive one written before."""
    if os.name == "nt":  # where folders cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: Any) -> bytes:
    """Return a value as indented JSON, NaN refused."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
