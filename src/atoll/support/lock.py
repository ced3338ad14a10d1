"""One process per folder: a lock that the system releases when its holder exits."""

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.support.errors import InputError, RunError, reason_of
from atoll.support.files import make_folder

LOCK = ".lock"

_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # some network file systems cannot lock
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_LOOK_SECONDS = 0.05  # between attempts while waiting
_held: set[int] = set()

if sys.platform == "win32":
    import msvcrt

    _BEYOND = 2**30  # Windows does not let others read locked bytes, and they must read the process number

    def _is_taken(descriptor: int) -> bool:
        os.lseek(descriptor, _BEYOND, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return True
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return False

    def _remove(descriptor: int, path: Path) -> None:
        os.close(descriptor)  # first, since an open file cannot be removed
        with suppress(OSError):
            path.unlink()

else:
    import fcntl

    def _is_taken(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        return False

    def _remove(descriptor: int, path: Path) -> None:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, making it and its parents first; remove again what is new and stays empty."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    make_folder(folder)
    try:
        with locked(folder):
            yield
    finally:
        for each in new:
            with suppress(OSError):
                each.rmdir()


@contextmanager
def locked(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold a folder's lock: a file ``.lock`` that contains this process's number.

    The lock of a killed process is taken over. Forked processes do not inherit the lock, so they cannot hold it
    after this process exits. On file systems without locks nothing is guarded.

    Args:
        folder: the folder to lock; it must exist.
        patience: seconds to wait for another holder.
    """
    path = folder / LOCK
    try:
        descriptor = _acquire(path, time.monotonic() + patience)
    except OSError as error:
        told = "write to the folder" if error.errno in _READ_ONLY else "lock"
        raise RunError(f"cannot {told} {folder}: {reason_of(error)}") from error
    try:
        yield
    finally:
        if descriptor in _held:  # else this is a forked copy, and the lock is its parent's
            _held.discard(descriptor)
            _remove(descriptor, path)


def _acquire(path: Path, until: float) -> int:
    """Return the descriptor of the locked file, after waiting for it until this time at most."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if _is_taken(descriptor):
                if time.monotonic() >= until:
                    raise _refusal(descriptor, path)
                time.sleep(_LOOK_SECONDS)
            elif _is_same(descriptor, path):
                _held.add(descriptor)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
        except BaseException:
            if descriptor in _held:  # else the lock is another's
                _held.discard(descriptor)
                _remove(descriptor, path)
            else:
                os.close(descriptor)
            raise
        os.close(descriptor)  # its holder may have removed the file in the meantime: try again with the current one


def _refusal(descriptor: int, path: Path) -> InputError:
    holder = os.read(descriptor, 20).decode(errors="replace").strip()
    return InputError(
        f"--out {path.parent}: is in use by process {holder or '(just starting)'}; wait for it, stop it, or give "
        "another folder"
    )


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _close_inherited() -> None:
    """Close the lock files that a forked process has inherited, which does not release the parent's locks."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
