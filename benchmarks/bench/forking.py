"""Contenders as forks of a process that has already imported PyTorch, which takes longer than a quick round."""

import multiprocessing
import os
import subprocess
import sys
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import IO

from bench.work import Case

CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()


class Fork:
    """One of Atoll's contenders, with part of the interface of `subprocess.Popen`.

    Attributes:
        pid: of its process, which leads its own session.
        stdin: each line requests a round.
        stdout: its answers.
    """

    def __init__(self, name: str, case: Case, errors: IO[str]) -> None:
        """Start it; its errors are written to `errors`, an open file."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bench.contenders", "torch._dynamo"])  # optimisers import the latter
        with ExitStack() as stack:
            asked, asks = context.Pipe(duplex=False)
            answers, answered = context.Pipe(duplex=False)
            ends = asked, answered, Connection(os.dup(errors.fileno()), readable=False)
            for end in (*ends, asks, answers):  # the child has its own copies, and we open ours as files
                stack.callback(end.close)
            self._process = context.Process(target=_serve, args=(name, case, *ends))
            self._process.start()
            self.stdin: IO[str] | None = os.fdopen(os.dup(asks.fileno()), "w", encoding="utf-8")
            self.stdout: IO[str] | None = os.fdopen(os.dup(answers.fileno()), encoding="utf-8")

    @property
    def pid(self) -> int:
        """Return its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: if it has not ended after this many seconds.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a contender", timeout or 0)
        return self._process.exitcode


def _serve(name: str, case: Case, asked: Connection, answered: Connection, errors: Connection) -> None:
    """Train rounds like ``contend.py``, with these as standard input, output and error."""
    os.setsid()
    for number, end in enumerate((asked, answered, errors)):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - multiprocessing has put another there
    from bench.contenders import serve

    serve(name, case)
    os._exit(0)
