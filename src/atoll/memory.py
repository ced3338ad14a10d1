"""How this process keeps the memory that it has freed."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for them, M_..., in malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes that glibc allows


def keep_freed_memory() -> None:
    """Let this process keep what it frees, for the next time, rather than give it back to the system.

    A training step frees all activations and gradients, and the next one asks for as many. With glibc, large ones come
    from the system as empty pages each time, which takes a sixth of a step of `alexnet`. Elsewhere nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:  # another C library
        return
    set_option(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    set_option(_TRIM_THRESHOLD, 2**31 - 1)
