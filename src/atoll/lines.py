"""Files of one JSON object a line, which only grow."""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from atoll.errors import RunError


def line_as_bytes(value: Mapping[str, Any]) -> bytes:
    """Return a line, NaN refused."""
    return (json.dumps(value, allow_nan=False) + "\n").encode()


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append a line and flush it to disk; if the disk is full the file keeps its whole lines.

    Raises:
        RunError: it cannot be written.
    """
    line = line_as_bytes(value)
    size = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "ab", buffering=0) as file:
            written = file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())  # a checkpoint that comes later must not outlive its rows
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, size)
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
