"""Forked single-threaded processes that answer requests in parallel."""

import gc
import multiprocessing
import os
import signal
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from atoll.support.errors import AtollError, InputError, RunError
from atoll.support.process import keep_freed_memory

RETRIES = 3  # of a request whose worker died

Request = Any
Answer = tuple[type[AtollError] | None, Any]
"""None and the answer, or an error class and its message."""


@dataclass(eq=False)
class Requests:
    """Requests by number: to come, to be sent again, and answered."""

    coming: Iterator[Request]
    handed_out: int = 0
    again: list[tuple[int, Request]] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)

    def take(self, end: int) -> tuple[int, Request] | None:
        """Return the next request to send; None if only those numbered `end` or above are left."""
        if self.again:
            return self.again.pop()
        if self.handed_out == end:
            return None
        for request in self.coming:
            self.handed_out += 1
            return self.handed_out - 1, request
        return None

    def requeue(self, lost: Sequence[tuple[int, Request]], name: Callable[[Request], str], how: str) -> None:
        """Send a dead worker's requests again; it was working on the first, which fails after `RETRIES`."""
        for number, request in lost[:1]:
            self.deaths[number] += 1
            if self.deaths[number] > RETRIES:
                ended = f"{name(request)} ended its worker process {RETRIES + 1} times ({how})"
                self.answers[number] = RunError, f"{ended}; use fewer run.workers, or 'serial'"
                lost = lost[1:]
        self.again += reversed(lost)  # the last one is taken first


@dataclass(eq=False)
class _Worker:
    """A process, as seen from the one that forked it.

    Attributes:
        pipe: carries its requests and answers.
        under_way: its requests, with their numbers; it answers them in this order.
    """

    pipe: Connection
    process: BaseProcess
    under_way: deque[tuple[int, Request]] = field(default_factory=deque)


class Workers:
    """Processes forked when there is work for them; what they inherit is not copied or pickled.

    A worker that dies is replaced, and its request goes to another. Workers ignore keyboard interrupts, and end when
    they are closed or this process is gone.
    """

    def __init__(self, count: int, answer: Callable[[Request], Any]) -> None:
        """Let at most `count` workers answer requests by this function; errors call a request by its `str`.

        A worker has two requests at a time, so that it need not wait for the next. `at_a_time` must be one if both
        requests and answers exceed a pipe's buffer, since each side would then wait for the other to read.
        """
        if count < 1:
            raise InputError(f"run.workers = {count}: must be at least 1")
        if "fork" not in multiprocessing.get_all_start_methods():
            raise InputError("run.executor = 'cores': this platform cannot fork processes; use 'serial'")
        self.count = count
        self._workers: list[_Worker] = []
        self._answer = answer
        self.at_a_time = 2

    @property
    def processes(self) -> list[BaseProcess]:
        """The processes that are running."""
        return [worker.process for worker in self._workers]

    def map(self, requests: Iterable[Request], count: int, ahead: int) -> Iterator[Any]:
        """Yield the answers to `count` requests, in order.

        Requests are sent in order, to free workers first. Request i is sent only after the answer to request i - ahead
        has been yielded and the next one requested.
        """
        pending = Requests(iter(requests))
        if any(worker.under_way for worker in self._workers):  # the previous answers were not all requested
            self.close()
        for due in range(count):
            self._collect(pending, seconds=0)
            self._hand_out(pending, due + ahead, count)
            while due not in pending.answers:
                self._collect(pending)
                self._hand_out(pending, due + ahead, count)
            error, content = pending.answers.pop(due)
            if error:
                raise error(content)
            yield content

    def close(self) -> None:
        """End all workers at once, even if busy; new ones are forked if there is work again."""
        for worker in list(self._workers):
            self._end(worker)

    def _collect(self, pending: Requests, seconds: float | None = None) -> None:
        """Wait this long for an answer, and take all that have arrived."""
        busy = {worker.pipe: worker for worker in self._workers if worker.under_way}
        ready = wait(list(busy), seconds) if busy else []
        for worker in [worker for pipe, worker in busy.items() if pipe in ready]:
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):  # it died
                pending.requeue(list(worker.under_way), str, f"exit code {self._end(worker)}")
            else:
                number, _ = worker.under_way.popleft()
                pending.answers[number] = answer

    def _hand_out(self, pending: Requests, end: int, count: int) -> None:
        """Give requests numbered below `end` to the workers with the fewest.

        The last ones go to free workers only, so that all finish together.
        """
        while True:
            fewest = min((len(worker.under_way) for worker in self._workers), default=0)
            idle = len(self._workers) < self.count or fewest == 0
            left = count - pending.handed_out + len(pending.again)
            if not idle and (fewest == self.at_a_time or left <= self.count):
                return
            if not (taken := pending.take(end)):
                return
            self._send(taken)

    def _send(self, taken: tuple[int, Request]) -> None:
        while True:
            worker = min(self._workers, key=lambda each: len(each.under_way), default=None)
            if worker is None or (worker.under_way and len(self._workers) < self.count):
                worker = self._fork()
            try:
                worker.pipe.send(taken[1])
                break
            except OSError:  # it died
                if worker.under_way:
                    break  # `_collect` will requeue its requests
                self._end(worker)
        worker.under_way.append(taken)

    def _fork(self) -> _Worker:
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        inherited = [*(worker.pipe for worker in self._workers), ours]
        process = fork.Process(target=self._serve, args=(theirs, inherited), daemon=True)
        try:
            with _undisturbed():
                process.start()
        except OSError as error:
            raise RunError(f"run.workers = {self.count}: no further process can be started ({error})") from error
        theirs.close()
        self._workers.append(_Worker(ours, process))
        return self._workers[-1]

    def _end(self, worker: _Worker) -> int | None:
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()
        code = worker.process.exitcode
        worker.process.close()
        return code

    def _serve(self, pipe: Connection, inherited: Sequence[Connection]) -> None:
        """Answer until the other end of the pipe is closed."""
        for other in inherited:  # otherwise they would stay open when the parent process is gone
            other.close()
        gc.freeze()  # a collection would write to the pages of all inherited objects, and so copy them
        torch.set_num_threads(1)
        keep_freed_memory()
        with suppress(EOFError, OSError):
            while True:
                pipe.send(try_to_answer(self._answer, pipe.recv(), str))
        os._exit(0)  # without flushing or finalising what belongs to the parent


def try_to_answer(answer: Callable[[Request], Any], request: Request, name: Callable[[Request], str]) -> Answer:
    """Answer a request, in a worker; errors become messages that the run's process can raise."""
    try:
        return None, answer(request)
    except AtollError as error:
        return InputError if isinstance(error, InputError) else RunError, str(error)
    except Exception as error:  # raised by a user's model, loss or optimiser
        return RunError, f"{name(request)} failed ({type(error).__name__}: {error})"


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Fork with keyboard interrupts blocked, which the child inherits.

    Python 3.12 warns about forking a process with threads, since the child could wait for a lock that another thread
    held. PyTorch's threads hold none between calls, those that evaluate do not end (`local/threads.py`), and the child
    uses neither them nor the terminal.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
