"""Several runs at once, each in its own process."""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from atoll.sweep.sweep_worker import Answer, Job, News, work

_TICK_SECONDS = 0.3
# What runs import, some of it only in training: PyTorch's optimizers import torch._dynamo, which takes 2 s.
_PRELOADED = ["atoll.sweep.sweep_worker", "torch._dynamo"]
_PATIENCE_SECONDS = 15.0  # for a process told to stop at once, while it saves its run


@dataclass(frozen=True, eq=False)
class _Running:
    job: Job
    process: BaseProcess
    pipe: Connection


def run_jobs(
    jobs: Iterator[Job], at_once: int, judge: Callable[[Job, News], Answer] | None = None
) -> Generator[tuple[Job, News] | None]:
    """Run jobs, `at_once` at a time, and yield their news as it comes, or None now and then while there is none.

    A job is taken from `jobs` when there is room for it, after all earlier news has been yielded. `judge` decides from
    news that holds a row whether the run continues. Closing the generator stops the remaining runs at their next
    checkpoint; a `KeyboardInterrupt` meanwhile stops them at once, also saved. As with everything that starts
    processes, call this below ``if __name__ == "__main__":`` in a script.
    """
    context = _context()
    running: dict[Connection, _Running] = {}
    try:
        while True:
            while len(running) < at_once and (job := next(jobs, None)) is not None:
                started = _start(context, job)
                running[started.pipe] = started
            if not running:
                return
            ready = wait(list(running), _TICK_SECONDS)
            if not ready:
                yield None
            for pipe in ready:
                one = running[pipe]  # type: ignore[index]
                news = _read(one)
                if news.state != "running":
                    del running[one.pipe]
                    one.process.join()
                    one.pipe.close()
                yield one.job, news
                if news.state == "running" and news.row is not None:
                    _tell(one, "go on" if judge is None else judge(one.job, news))
    except KeyboardInterrupt:
        _terminate(running.values())
        raise
    finally:
        _stop(list(running.values()))


def _terminate(running: Iterable[_Running]) -> None:
    for one in running:
        one.process.terminate()


def _context() -> Any:
    """Return how processes are started: where that is safe, forked from one that has imported everything."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _start(context: Any, job: Job) -> _Running:
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(job, Path.cwd(), theirs), name=f"atoll {job.name}")
    process.start()
    theirs.close()
    return _Running(job, process, ours)


def _read(one: _Running) -> News:
    """Return the news of a job; a failure if its process died without sending any."""
    try:
        news: News = one.pipe.recv()
        return news
    except (EOFError, OSError):
        one.process.join()
        return News("failed", error=_how_it_died(one.process.exitcode or 0))


def _how_it_died(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
    hint = ", as happens when memory runs out" if name == "SIGKILL" else ""
    return f"its process was killed by signal {name}{hint}"


def _tell(one: _Running, answer: Answer) -> None:
    with suppress(OSError):  # it has died, which the next read will show
        one.pipe.send(answer)


def _stop(running: list[_Running]) -> None:
    """Stop the remaining runs at their next checkpoint, or at once on a second interrupt."""
    try:
        for one in running:
            _tell(one, "stop")
        for one in running:
            _drain(one)
    except KeyboardInterrupt:
        _terminate(running)
        raise
    finally:
        for one in running:
            one.process.join(_PATIENCE_SECONDS)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()
            one.pipe.close()


def _drain(one: _Running) -> None:
    """Read a job's reports until it ends, so that it never blocks sending one."""
    with suppress(EOFError, OSError):
        while one.pipe.recv().state == "running":
            pass
