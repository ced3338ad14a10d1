"""Reading untrusted files: regular ones only, of bounded size and nesting.

A file that cannot be opened raises OSError, whose `strerror` says why; wrong content raises ValueError.
"""

import errno
import json
import math
import os
import re
import stat
import tomllib
from collections import deque
from collections.abc import Iterator
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

MOST_BYTES = 2**26
MOST_BYTES_OF_LINES = 2**28
"""Limit for a file with a line per event or evaluation: more than half a million rows of metrics."""
MOST_BYTES_OF_TOML = 2**20
DEEPEST = 32
_MOST_BRACKETS = 2**22  # an empty list takes twenty times as much memory as its text

_STRING = re.compile(r"""\"(?:\\.|[^"\\\n])*+"?|'[^'\n]*+'?""")
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST},}}")


def open_regular(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a regular file; never wait for a pipe or read a device.

    Args:
        path: the file, or a link to it.
        within: the folder that must contain it, with links resolved.

    Raises:
        OSError: if it does not exist, is not a regular file, or lies elsewhere.
    """
    if within is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(within)):
        raise OSError(errno.EXDEV, "leads out of its folder", str(path))
    _require_regular(os.stat(path), path)  # before opening, which can block, or start a device
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _require_regular(os.fstat(file.fileno()), path)
    except OSError:
        file.close()
        raise
    return file


def _require_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


def read_bytes(path: Path, within: Path | None = None, most: int = MOST_BYTES) -> bytes:
    """Return a file's content.

    Raises:
        OSError: as `open_regular`, or if it is longer than `most` bytes.
    """
    with open_regular(path, within) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"is longer than {most >> 20} MiB", str(path))
        return file.read(size)


def read_json(path: Path, within: Path | None = None) -> Any:
    """Return the content of a JSON file."""
    return parse_json(read_bytes(path, within))


def read_toml(path: Path, within: Path | None = None) -> dict[str, Any]:
    """Return the content of a TOML file."""
    return parse_toml(read_bytes(path, within, MOST_BYTES_OF_TOML))


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: if it is not JSON, has a number that does not fit into 64 bits or is not finite, or nests too deep.
    """
    brackets = content.count(b"[") + content.count(b"{")
    if brackets > _MOST_BRACKETS:
        raise ValueError(f"it has more than {_MOST_BRACKETS} lists and tables")
    try:
        value = _JSON.decode(content.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if brackets > DEEPEST:
        deque(_walk(value), maxlen=0)
    return value


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return the table of a TOML text; a leading byte order mark is skipped.

    Raises:
        ValueError: if it is not TOML, has a whole number that does not fit into 64 bits, or nests too deep.
    """
    text = content.decode("utf-8-sig")
    if _LONG_KEY.search(_STRING.sub("key", text)):  # tomllib's time is quadratic in a key's parts
        raise ValueError(f"it has a key of more than {DEEPEST} parts")
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    for each in _walk(table):
        if isinstance(each, int):
            _require_64_bits(each)
    return table


def _walk(value: Any) -> Iterator[Any]:
    """Yield everything in a value, level by level."""
    level = [value]
    for _ in range(DEEPEST + 1):
        inside = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = []
        for each in inside:
            yield each
            if isinstance(each, dict | list):
                level.append(each)
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _whole(digits: str) -> int:
    return _require_64_bits(int(digits)) if len(digits) <= 20 else _require_64_bits(2**63)


def _require_64_bits(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise ValueError("it has a whole number of more than 64 bits")
    return number


def _finite(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"it has the number {text}, which is not finite")


_JSON = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_finite)
