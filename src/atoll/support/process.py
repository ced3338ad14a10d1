"""This process: the threads it computes in, and the memory it keeps."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, so that bits do not depend on the number of cores.

    It is also fast where it matters: a client's steps are too small to share, and two threads that share a small
    step wait for each other, many times longer than the step takes once another process is busy.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's names for them, M_..., in malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes that glibc allows


def keep_freed_memory() -> None:
    """Let this process keep what it frees, for the next time, rather than give it back to the system.

    A training step frees all activations and gradients, and the next one asks for as many. With glibc, large ones come
    from the system as empty pages each time, which takes a sixth of a step of `alexnet`. Threads share memory,
    since a thread's own holds no more than 64 MiB. Elsewhere nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:  # another C library
        return
    set_option(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    set_option(_TRIM_THRESHOLD, 2**31 - 1)
    set_option(_ARENA_MAX, 1)
