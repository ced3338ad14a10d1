"""Measurements of one module in several threads."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from copy import deepcopy
from functools import cache
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import nn

from atoll.local.precision import products_in
from atoll.support.process import one_thread

Part = TypeVar("Part")
Answer = TypeVar("Answer")


def side_by_side(
    measure: Callable[[nn.Module, Part], Answer], module: nn.Module, parts: Sequence[Part], threads: int
) -> list[Answer]:
    """Return each part's measurements, in order; with several threads, each has a copy of the module.

    PyTorch uses one thread in each, so results are bit-identical to one thread's.
    """
    if threads == 1 or len(parts) == 1:
        return [measure(module, part) for part in parts]
    copies = SimpleQueue[nn.Module]()
    for copy in (module, *(deepcopy(module) for _ in range(threads - 1))):
        copies.put(copy)

    def take(part: Part) -> Answer:
        copy = copies.get()
        try:
            with torch.no_grad():
                return measure(copy, part)
        finally:
            copies.put(copy)

    with one_thread(), products_in("float32"):  # which are the process's, not a thread's
        works = [_pool(threads).submit(take, part) for part in parts]
        try:
            return [work.result() for work in works]
        finally:  # after an error, too, nobody else uses the module any more
            wait([work for work in works if not work.cancel()])


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return threads that stay until the process ends, since workers are forked from it.

    A thread that ends returns memory to MKL under a lock, after Python counts it as ended; a process forked meanwhile
    waits for that lock for ever. Threads that wait hold none.
    """
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # the child has none of these threads
