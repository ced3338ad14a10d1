"""Forked processes, one thread each, that answer requests side by side."""

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

RETRIES = 3  # of a request whose worker was killed

Request = Any
Answer = tuple[type[AtollError] | None, Any]
"""The answer, or what kind of error there was and its message."""


@dataclass(eq=False)
class Requests:
    """Requests by number: still to come, to be handed out again, answered."""

    coming: Iterator[Request]
    handed_out: int = 0
    again: list[tuple[int, Request]] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)

    def take(self, end: int) -> tuple[int, Request] | None:
        """Return the next one to hand out, none if only those from number `end` on are left."""
        if self.again:
            return self.again.pop()
        if self.handed_out == end:
            return None
        for request in self.coming:
            self.handed_out += 1
            return self.handed_out - 1, request
        return None


@dataclass(eq=False)
class _Worker:
    """A process, seen from the one that forked it.

    Attributes:
        pipe: what it is asked and answers through.
        process: its handle.
        under_way: numbers of its requests, with them; it answers them in this order.
    """

    pipe: Connection
    process: BaseProcess
    under_way: deque[tuple[int, Request]] = field(default_factory=deque)


class Workers:
    """At most so many processes, forked when there is work for them; what they inherit is not copied or pickled.

    A worker that is killed is replaced, and its request goes to another. Workers do not see the keyboard's interrupt,
    and end when they are closed or this process is gone.
    """

    def __init__(
        self, count: int, answer: Callable[[Request], Any], name: Callable[[Request], str], at_a_time: int = 2
    ) -> None:
        """Let workers answer requests by this function; `name` says what a request is about, for errors.

        A worker has two requests at a time, so that it need not wait for the next one; it must be one where requests
        and answers are both larger than a pipe's buffer, since each side would wait for the other to read.

        Raises:
            InputError: a count that is not positive, or a platform that cannot fork.
        """
        if count < 1:
            raise InputError(f"run.workers = {count}: must be at least 1")
        if "fork" not in multiprocessing.get_all_start_methods():
            raise InputError("run.executor = 'cores': this platform cannot fork processes; use 'serial'")
        self.count = count
        self._workers: list[_Worker] = []
        self._answer = answer
        self._name = name
        self._at_a_time = at_a_time

    @property
    def processes(self) -> list[BaseProcess]:
        """Those that have been forked and not ended."""
        return [worker.process for worker in self._workers]

    def map(self, requests: Iterable[Request], count: int, ahead: int) -> Iterator[Any]:
        """Yield the answers in the order of the requests, of which there are so many.

        Requests are handed out in order, each to a worker that is free, or will soon be while there are others for
        those that are free sooner; and request i only after the answer to request i - ahead has been yielded and the
        next one asked for.

        Raises:
            AtollError: a request failed with it, the first in their order.
        """
        pending = Requests(iter(requests))
        if any(worker.under_way for worker in self._workers):  # those before were not all asked for
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
        """End all workers at once, whatever they do; new ones are forked if there is work again."""
        for worker in list(self._workers):
            self._end(worker)

    def _collect(self, pending: Requests, seconds: float | None = None) -> None:
        """Wait so long for an answer, and take those that have come."""
        busy = {worker.pipe: worker for worker in self._workers if worker.under_way}
        ready = wait(list(busy), seconds) if busy else []
        for worker in [worker for pipe, worker in busy.items() if pipe in ready]:
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                self._give_up(worker, pending)
            else:
                number, _ = worker.under_way.popleft()
                pending.answers[number] = answer

    def _give_up(self, worker: _Worker, pending: Requests) -> None:
        """Hand out a killed worker's requests again; the first is the one that it was working on."""
        code = self._end(worker)
        lost = list(worker.under_way)
        number, request = lost[0]
        pending.deaths[number] += 1
        if pending.deaths[number] > RETRIES:
            ended = f"{self._name(request)} ended its worker process {RETRIES + 1} times (exit code {code})"
            pending.answers[number] = RunError, f"{ended}; use fewer run.workers, or 'serial'"
            lost.pop(0)
        pending.again += reversed(lost)  # the last one is taken first

    def _hand_out(self, pending: Requests, end: int, count: int) -> None:
        """Give requests with a number below `end` to the workers that have the fewest.

        The last ones are given to free workers only, so that all end together.
        """
        while True:
            fewest = min((len(worker.under_way) for worker in self._workers), default=0)
            idle = len(self._workers) < self.count or fewest == 0
            left = count - pending.handed_out + len(pending.again)
            if not idle and (fewest == self._at_a_time or left <= self.count):
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
            except OSError:  # it was killed
                if worker.under_way:
                    break  # all that it had is handed out again when that is noticed
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
        for other in inherited:  # else they would stay open when the process that forked this one is gone
            other.close()
        gc.freeze()  # a collection would write to, and so copy, the pages of all inherited objects
        torch.set_num_threads(1)
        keep_freed_memory()
        with suppress(EOFError, OSError):
            while True:
                pipe.send(try_to_answer(self._answer, pipe.recv(), self._name))
        os._exit(0)  # without flushing or finishing what belongs to the other process


def try_to_answer(answer: Callable[[Request], Any], request: Request, name: Callable[[Request], str]) -> Answer:
    """Answer a request, in a worker; an error becomes a message that the run's process can raise."""
    try:
        return None, answer(request)
    except AtollError as error:
        return InputError if isinstance(error, InputError) else RunError, str(error)
    except Exception as error:  # whatever a user's model, loss or optimiser may raise
        return RunError, f"{name(request)} failed ({type(error).__name__}: {error})"


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Fork with the keyboard's interrupt blocked, which the child inherits and keeps.

    Python 3.12 warns of forking beside threads, since a child could wait for a lock that another thread held. PyTorch's
    threads hold none between its calls, and the child uses neither them nor the terminal.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
