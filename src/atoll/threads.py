"""Computing in one thread."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, so that bits do not depend on the number of cores.

    It is also fast where it matters: a client's steps are too small to share, and two threads that share a small
    step wait for each other, many times longer than the step takes once another process is busy.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
