"""Files that are written whole or not at all, and append-only files with one JSON object per line.

Functions that write raise RunError if the disk is full or read-only, or the folder is not writable.
"""

import csv
import errno
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from atoll.support.errors import RunError, reason_of
from atoll.support.untrusted import MOST_BYTES_OF_LINES, parse_json, read_bytes

_SEAL = re.compile(rb', "crc32": "[0-9a-f]{8}"\}$')


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as comma-separated values; None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_atomically(path: Path, content: bytes, flush: bool = True) -> None:
    """Write a file whole or not at all: write a temporary file, flush it to disk, rename it, and flush the rename.

    Without flushing, which takes milliseconds, that holds if the process is killed, but not if the power fails.
    """
    aside = path.with_name(f".{path.name}.part")
    try:
        with open(aside, "wb") as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        aside.replace(path)
        if flush:
            _flush_folder(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason_of(error)}") from error
    finally:
        with suppress(OSError):
            aside.unlink()


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that must not exist yet, whole or not at all; it has this mode from its first byte on.

    Raises:
        FileExistsError: if it exists.
    """
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            try:
                file.write(content)
                file.flush()
            except OSError:
                path.unlink()
                raise
    except FileExistsError:
        raise
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason_of(error)}") from error


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its parents unless they exist; `mode` applies to the folder itself, less the umask."""
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise RunError(f"cannot make the folder {path}: {error.filename} is a file, or a link to nothing") from error
    except OSError as error:
        raise RunError(f"cannot make the folder {path}: {reason_of(error)}") from error


def _flush_folder(path: Path) -> None:
    """Flush a folder's entries to disk, so that no file written later survives a crash that loses this one."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: Any) -> bytes:
    """Return a value as indented JSON; NaN is an error."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def line_as_bytes(value: Mapping[str, Any]) -> bytes:
    """Return a JSON object as a line that ends with its own checksum; NaN is an error."""
    return seal(json.dumps(value, allow_nan=False).encode()) + b"\n"


def seal(line: bytes) -> bytes:
    """Return a JSON object with a checksum of the rest as its last entry."""
    return line[:-1] + b', "crc32": "%08x"}' % zlib.crc32(line)


def whole_lines(path: Path, within: Path | None = None) -> list[bytes]:
    """Return the lines of a file without line ends and checksums; a last line torn by a crash is dropped.

    A file without any checksums, such as one written by hand, is read as it is.

    Raises:
        OSError: if it cannot be read, as in `untrusted.read_bytes`.
        ValueError: if a checksum does not match; names the line, counted from 1.
    """
    return unsealed(read_bytes(path, within, MOST_BYTES_OF_LINES))


def unsealed(content: bytes) -> list[bytes]:
    """Return the lines that `whole_lines` reads from a file of this content."""
    *lines, last = content.split(b"\n")
    with suppress(ValueError):
        parse_json(last)  # unlike what a crash has cut short, the end of a file written by hand is JSON
        lines.append(last)
    return list(map(_unseal, lines, count(1))) if any(map(_SEAL.search, lines)) else lines


def _unseal(line: bytes, number: int) -> bytes:
    content = _SEAL.sub(b"}", line)
    if seal(content) != line:
        raise ValueError(f"line {number}: its checksum does not match")
    return content


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append a line and flush it to disk; if that fails, the file keeps the lines that it had."""
    line = line_as_bytes(value)
    size = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "ab", buffering=0) as file:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())  # a checkpoint that comes later must not outlive its rows
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, size)
        raise RunError(f"cannot write {path}: {reason_of(error)}") from error
