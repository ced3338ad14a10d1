"""The errors that a user sees: bad input, and runs that fail."""

import errno
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Code that is not the user's: Atoll, Python, installed packages, and what has no file.
_NOT_OWN = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<")
_LOST = "once the GPU answers, give the same command with --resume"
_TOO_SMALL = "the GPU is too small: lower run.stack_bytes, or take a smaller model, fewer samples or another GPU"
_OF_A_CARD = re.compile("(CUDA|cuDNN|HIP) (error|out of memory|driver)|(CUDNN|CUBLAS)_STATUS")


class AtollError(Exception):
    """Base of Atoll's own errors; the message is one sentence meant for the user."""

    exit_code = 1


class InputError(AtollError):
    """Bad input: names the setting, its value and what is allowed (exit code 2)."""

    exit_code = 2


class SettingWarning(UserWarning):
    """Settings that have no effect, or an unexpected one; the message is one sentence meant for the user."""


@contextmanager
def reading(subject: str) -> Iterator[None]:
    """Prefix errors with their subject, such as the setting that names a file, unless they begin with it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{subject}: {str(error).removeprefix(f'{subject}: ')}") from error


@contextmanager
def refusing(told: str, *kinds: type[Exception], hint: str = "") -> Iterator[None]:
    """Turn an `OSError`, or an error of these kinds, into an `InputError`: what is told, the reason and a hint."""
    caught: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
    except caught as error:
        raise InputError(f"{told} ({reason_of(error)}){hint}") from error


class RunError(AtollError):
    """A run that failed although its input was valid (exit code 1)."""


class NotFinite(RunError):
    """Training whose loss or model became not finite, as it would again."""


def line_of(error: BaseException) -> str:
    """Return an error's kind and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def failure_of(error: BaseException) -> str:
    """Return what a user's code raised, on one line, with the file and line of that code."""
    not_own = (*_NOT_OWN, *getattr(sys.modules.get("torch"), "__path__", ()))  # which may lie anywhere
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(not_own)]
    where = f", {Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""
    return " ".join(f"{type(error).__name__}: {error}{where}".split())


@contextmanager
def blaming(told: str, blame: type[AtollError], *kinds: type[BaseException]) -> Iterator[None]:
    """Turn an `Exception` of a user's code, or an error of these kinds, into `blame`: what is told, and where.

    Atoll's own errors pass as they are.
    """
    caught: tuple[type[BaseException], ...] = (Exception, *kinds)
    try:
        yield
    except AtollError:
        raise
    except caught as error:
        raise blame(f"{told} ({failure_of(error)})") from error


def reason_of(error: BaseException) -> str:
    """Return why something failed, on one line, without an `OSError`'s number and path, or addresses in memory."""
    return " ".join(re.sub(r"<\S+ object at 0x\w+>", "", str(getattr(error, "strerror", None) or error)).split())


def full_disk(error: BaseException) -> str:
    """Return the sentence for an error that a full disk caused: where, and how to go on."""
    place = f"{error.filename or 'its folder'}: " if isinstance(error, OSError) else ""
    return f"{place}{reason_of(error)}; free some space and give the same command with --resume"


def is_full(error: BaseException | None) -> bool:
    """Return whether an error was caused by a full disk or an exhausted quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


@contextmanager
def telling_of_gpus() -> Iterator[None]:
    """Turn what a GPU reports, also as the cause of another error, into a sentence that says how to go on."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = None if str(error).startswith("run.") else error  # else it is a sentence already
        while cause is not None and not (isinstance(cause, RuntimeError) and _OF_A_CARD.search(str(cause))):
            cause = cause.__cause__
        if cause is None:
            raise
        told = str(cause).strip().partition("\n")[0].removesuffix(".")
        on = _TOO_SMALL if "out of memory" in told or "ALLOC_FAILED" in told else _LOST
        raise RunError(f"run.device = 'cuda': {told}; {on}") from error
