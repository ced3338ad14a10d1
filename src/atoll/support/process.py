"""This process: its threads, its signals, and the memory it keeps."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, so that results do not depend on the number of cores.

    This is also fast: a client's steps are too small to split, and threads that split one wait for each other, many
    times longer than the step itself once another process is busy.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def own_signals() -> Iterator[None]:
    """Give SIGINT and SIGTERM back to their handlers at the end; only the main thread can take them."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # M_... in glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; glibc allows no more


def keep_freed_memory() -> None:
    """Make this process keep the memory that it frees instead of returning it to the system (glibc only).

    A training step frees all activations and gradients, and the next step needs as much again. By default glibc gets
    large blocks from the system as empty pages each time, which takes a sixth of a step of `alexnet`. All threads use
    one arena, since a thread's own holds no more than 64 MiB.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if set_option is None:  # another system or C library
        return
    set_option(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    set_option(_TRIM_THRESHOLD, 2**31 - 1)
    set_option(_ARENA_MAX, 1)


def end_with_input() -> None:
    """End when the process that started this one, and holds its standard input, ends, however that happens."""
    os.read(0, 1)  # nobody writes to it; the lock of a buffered read would abort a process that fails by itself
    os._exit(0)
