"""Kill a run by SIGKILL where it writes: a forked child counts its steps on files, and dies at a given one."""

import gc
import itertools
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atoll import Experiment, run_events

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

AUDITED = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate")  # fsync, which has no audit event, is wrapped


def carry_to_end(experiment: Experiment, folder: Path) -> list[str]:
    """Begin the run or go on with it; return its warnings."""
    return [warning for progress in run_events(experiment, folder, resume=True) for warning in progress.warnings]


def fork(work: Callable[[], None]) -> int:
    """Do the work in a child process, which computes in one thread; return its number."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    try:
        gc.freeze()
        torch.set_num_threads(1)
        work()
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)


def wait_for(child: int) -> int:
    """Return the child's exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def watch_files(folder: Path, step: Callable[[int, Path | None], None]) -> None:
    """Call `step` before each thing that this process does to a file in the folder, from now on and for good.

    It is given how many there were before, and the file if it is being flushed: what was written to it may then be
    lost in part.
    """
    counter = itertools.count()
    real, inside = os.fsync, str(folder)

    def fsync(fd: "FileDescriptorLike") -> None:
        step(next(counter), Path(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in AUDITED and isinstance(arguments[0], str | Path) and str(arguments[0]).startswith(inside):
            step(next(counter), None)

    os.fsync = fsync
    sys.addaudithook(hook)


def count_steps(experiment: Experiment, folder: Path) -> int:
    """Return how many steps on files a whole run takes, carried out in a child."""
    note = folder.with_suffix(".steps")

    def work() -> None:
        last = 0

        def step(number: int, _: Path | None) -> None:
            nonlocal last
            last = number

        watch_files(folder, step)
        carry_to_end(experiment, folder)
        note.write_text(str(last + 1))

    assert wait_for(fork(work)) == 0
    return int(note.read_text())


def dying_at(number: int, kept: float) -> Callable[[int, Path | None], None]:
    """Return what `watch_files` is to call so that this process kills itself at a step.

    If the file is being flushed, only this share of what was appended or written reaches the disk.
    """

    def step(now: int, flushed: Path | None) -> None:
        if now != number:
            return
        if flushed is not None and flushed.is_file():
            text = flushed.read_bytes()
            start = text[:-1].rfind(b"\n") + 1 if flushed.suffix == ".jsonl" else 0
            os.truncate(flushed, start + int(kept * (len(text) - start)))
        os.kill(os.getpid(), signal.SIGKILL)

    return step


def kill_at(experiment: Experiment, folder: Path, number: int, kept: float) -> bool:
    """Begin a run or go on with it, and kill it as `dying_at` says; return whether it lived to see it."""

    def work() -> None:
        watch_files(folder, dying_at(number, kept))
        carry_to_end(experiment, folder)

    code = wait_for(fork(work))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def kill_after(experiment: Experiment, folder: Path, seconds: float) -> bool:
    """Begin a run or go on with it, and kill it after so long; return whether it was still alive."""
    child = fork(lambda: void(carry_to_end(experiment, folder)))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    code = wait_for(child)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def void(_: object) -> None:
    """Forget a result."""
