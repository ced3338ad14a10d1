"""One process per folder: a lock that the system releases when its holder is gone."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.support.errors import InputError, RunError

LOCK = ".lock"

_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # some network file systems cannot lock
_held: set[int] = set()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, a file ``.lock`` with this process's number.

    A killed process's lock is taken over. Forked processes do not hold the lock, so they cannot keep it
    when this one is gone. Windows and file systems that cannot lock are not guarded.

    Raises:
        InputError: another process holds the lock, or another run in this one; names its number.
        RunError: the file cannot be written.
    """
    path = folder / LOCK
    try:
        descriptor = _acquire(path)
    except OSError as error:
        raise RunError(f"cannot lock {folder}: {error.strerror or error}") from error
    try:
        yield
    finally:
        if descriptor in _held:  # else this is a forked copy, and the lock is its parent's
            _held.discard(descriptor)
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)


def _acquire(path: Path) -> int:
    """Return the open and locked file."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, path)
            if _is_same(descriptor, path):
                _held.add(descriptor)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
        except BaseException:
            if descriptor in _held:  # not if the file is another's
                _held.discard(descriptor)
                path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has removed it meanwhile; try again with the file that is there now


def _lock(descriptor: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 20).decode(errors="replace").strip()
        raise InputError(
            f"--out {path.parent}: is in use by process {holder or '(just starting)'}; let it finish or stop it, "
            "or give another folder"
        ) from error
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _close_inherited() -> None:
    """Close the locks that a forked process has inherited; it does not unlock them."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
