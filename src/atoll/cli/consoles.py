"""The two consoles: results go to standard output; progress, warnings and errors to standard error."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from rich.console import Console


class Enduring:
    """Standard error as it is now; output that cannot be written is dropped.

    A run must not fail because a full disk has no space for the line that says so.
    """

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of standard error."""
        return getattr(_standard_error(), name)

    def write(self, text: str) -> int:
        """Write what can be written; report all of it as written."""
        with _enduring():
            _standard_error().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with _enduring():
            _standard_error().flush()


@contextmanager
def _enduring() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader has closed the pipe, which ends a command
        raise
    except OSError:
        pass


def _standard_error() -> IO[str]:
    # While rich shows progress, it replaces standard error by a file of its own.
    return cast(IO[str], getattr(sys.stderr, "rich_proxied_file", sys.stderr))


sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (it may be closed)
# In a file or a pipe, tables may be wider than rich's 80 columns.
_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
out = Console(markup=False, emoji=False, highlight=False, soft_wrap=True, width=_width)
err = Console(file=cast(IO[str], Enduring()), markup=False, emoji=False, highlight=False, soft_wrap=True)
