"""Several runs at once, each in a process of its own."""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from atoll.sweep.sweep_worker import Answer, Job, News, work

_TICK_SECONDS = 0.3
# What a run imports, some of it only when it trains: PyTorch's optimizers import torch._dynamo, which takes 2 s.
_PRELOADED = ["atoll.sweep.sweep_worker", "torch._dynamo", "sklearn.datasets"]
_PATIENCE_SECONDS = 15.0  # for a process asked to stop at once, which saves its run


@dataclass(frozen=True, eq=False)
class _Running:
    job: Job
    process: BaseProcess
    pipe: Connection


def run_jobs(
    jobs: Iterator[Job], at_once: int, judge: Callable[[Job, News], Answer] | None = None
) -> Generator[tuple[Job, News] | None]:
    """Run jobs, so many at a time, and yield each one's news; None now and then, if there is no news.

    A job is taken from `jobs` when there is room for it, after all news of those before it were yielded. When the
    generator is closed, the runs that go on are stopped at their next checkpoint; a `KeyboardInterrupt` meanwhile
    stops them at once, saved as well. In a script of your own, call this below ``if __name__ == "__main__":``, as
    everything that starts processes.

    Args:
        jobs: what is to be done.
        at_once: jobs at a time, at least one.
        judge: given a job and news with a row, says whether the run goes on.
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
        for one in running.values():
            one.process.terminate()
        raise
    finally:
        _stop(list(running.values()))


def _context() -> Any:
    """Return how processes are started: where that is safe, forked off one that has imported everything."""
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
    """Return the news of a job; a failure if its process has died without a word."""
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
    hint = ", as when the machine has no memory left" if name == "SIGKILL" else ""
    return f"its process was ended by the signal {name}{hint}"


def _tell(one: _Running, answer: Answer) -> None:
    try:
        one.pipe.send(answer)
    except OSError:  # it has died, which reading from it tells
        return


def _stop(running: list[_Running]) -> None:
    """Stop what still runs at its next checkpoint, or at once if the user insists."""
    try:
        for one in running:
            _tell(one, "stop")
        for one in running:
            _drain(one)
    except KeyboardInterrupt:
        for one in running:
            one.process.terminate()
        raise
    finally:
        for one in running:
            one.process.join(_PATIENCE_SECONDS)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()
            one.pipe.close()


def _drain(one: _Running) -> None:
    """Read a job's reports until it ends, so that it never blocks on sending one."""
    try:
        while one.pipe.recv().state == "running":
            pass
    except (EOFError, OSError):
        return
