"""The command line: one file for each group of commands, and `main`, which reports errors in one sentence."""

import atexit
import gc
import os
import sys
import warnings
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import typer

from atoll.cli import (  # noqa: F401  (they register themselves)
    benchmark_command,
    cluster_command,
    data_commands,
    fleet_commands,
    fleet_run_commands,
    folder_commands,
    plan_command,
    report_commands,
    reproduce_command,
    run_command,
    schedule_command,
    start_commands,
    sweep_command,
)
from atoll.cli.common import app, err
from atoll.cli.interrupts import Interrupts
from atoll.support.errors import AtollError, SettingWarning, reason_of
from atoll.support.wording import printable

__all__ = ["app", "main"]

# What is loaded and drawn makes many objects and next to no garbage. Python would look for it every 700 objects, and in
# all of them once more as it ends: a tenth of a short run.
gc.set_threshold(20_000)
atexit.register(gc.freeze)

_PLAINLY = warnings.showwarning
# Since 0.16 Typer brings its own copy of click; this is the usage error of the one that it uses.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for a failed run, 2 for bad input, 130 if interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings(), Interrupts() as interrupts:
        warnings.simplefilter("default", SettingWarning)
        warnings.showwarning = partial(_show, set())
        try:
            code = _main(words)
        except Exception:  # such as Pydantic's, which makes one of its own of an interrupt
            if interrupts.number is None:
                raise
    # A command that deals with an interruption by itself, and says how to resume, leaves none to this one.
    return code if interrupts.number is None else _fail("interrupted", interrupts.exit_code)


def _main(words: list[str]) -> int:
    try:
        code = _command()(words or ["--help"], prog_name="atoll", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except AtollError as error:
        for note in getattr(error, "__notes__", ()):  # with run.debug, the whole traceback
            err.print(note)
        return _fail(str(error), error.exit_code)
    except _UsageError as error:
        from atoll.cli.usage import tell_usage  # late: it loads the settings' schema

        return _fail(tell_usage(error, words), 2)
    except KeyboardInterrupt:  # Typer turns one during a command into the code
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _drop_output()
        return 1
    except OSError as error:
        if error.filename is None:  # without a file name it is the output that cannot be written
            _drop_output()
        where = "the output" if error.filename is None else str(error.filename)
        return _fail(f"{where}: {reason_of(error)}", 1)


@cache
def _command() -> Any:
    """Return click's command, kept since making it takes longer than most commands do."""
    return typer.main.get_command(app)


def _show(told: set[str], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """Print Atoll's own warnings as sentences, each once, others as Python does."""
    if not issubclass(category, SettingWarning):
        _PLAINLY(message, category, *where)
    elif str(message) not in told:
        told.add(str(message))
        err.print(f"warning: {message}")


def _fail(sentence: str, code: int) -> int:
    err.print(f"error: {' '.join(printable(sentence, None).split())}")
    return code


def _drop_output() -> None:
    """Discard what is still buffered, or Python would complain again when it flushes it on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
