"""The two consoles: results go to standard output; progress, warnings and errors to standard error."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from rich.console import Console


class Enduring:
    """Standard error, whatever that is now; what it has no room for is lost.

    A run on a disk that is full must not end for the line that would have said so.
    """

    def __getattr__(self, name: str) -> Any:
        """Return what standard error has."""
        return getattr(_standard_error(), name)

    def write(self, text: str) -> int:
        """Write what can be written."""
        with _enduring():
            _standard_error().write(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what can be passed on."""
        with _enduring():
            _standard_error().flush()


@contextmanager
def _enduring() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader has seen enough, which ends a command
        raise
    except OSError:
        pass


def _standard_error() -> IO[str]:
    # While rich shows progress, standard error is a part of rich itself.
    return cast(IO[str], getattr(sys.stderr, "rich_proxied_file", sys.stderr))


# Into a file or a pipe, tables may be wider than rich's 80 columns.
_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
out = Console(highlight=False, soft_wrap=True, width=_width)
err = Console(file=cast(IO[str], Enduring()), highlight=False, soft_wrap=True)
