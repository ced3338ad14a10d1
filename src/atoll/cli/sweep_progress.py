"""Watching the runs of a sweep in the terminal: one bar over all of them."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from atoll.cli.common import err
from atoll.cli.interrupts import Interrupts
from atoll.runs.folder import Row
from atoll.sweep.jobs import run_jobs
from atoll.sweep.worker import Answer, Job, News

_OTHERS = 8 + 12 + 11 + 8 + 4  # columns of title, bar, counter, remaining time and the gaps between them


@dataclass
class Watched:
    """What became of the runs.

    Attributes:
        failed: the error of each run that failed.
        exit_code: of a sweep that was interrupted; 0 for one that was not.
    """

    failed: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0


def watch(
    jobs: Iterator[Job],
    at_once: int,
    total: int,
    done: int,
    metric: str,
    quiet: bool,
    judge: Callable[[Job, News], Answer] | None = None,
    settle: Callable[[Job, News], str] | None = None,
) -> Watched:
    """Carry runs out to their end, or to the interrupt; errors are gathered, and the other runs go on.

    Args:
        jobs: the runs that are still to be done.
        at_once: runs at a time.
        total: runs in all.
        done: runs that were done before.
        metric: the column of rows that is shown.
        quiet: whether to show warnings alone.
        judge: says of a row whether its run goes on.
        settle: is told how a run has ended, and says what is wrong with it.
    """
    watched, view = Watched(), _View(metric, quiet, total, done)
    with Interrupts() as interrupts:
        interrupts.is_patient = True
        try:
            with view.bar, closing(run_jobs(jobs, at_once, judge)) as steps:
                for step in steps:
                    if step is not None:
                        job, news = step
                        view.show(job, news)
                        if news.state != "running":
                            error = settle(job, news) if settle is not None else news.error
                            watched.failed |= {job.name: error} if error else {}
                    if interrupts.number is not None:
                        break
        except KeyboardInterrupt:
            pass
        watched.exit_code = 0 if interrupts.number is None else interrupts.exit_code
    return watched


class _View:
    """The bar, and lines for what does not go into it."""

    def __init__(self, metric: str, quiet: bool, total: int, done: int) -> None:
        columns = (
            TextColumn("all runs"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[latest]}", markup=False),
        )
        self.bar = Progress(*columns, console=err, disable=quiet or not err.is_terminal)
        self.metric, self.quiet, self.done = metric, quiet, done
        self.task: TaskID = self.bar.add_task("", total=total, completed=done, latest="")
        self.shares: dict[str, float] = {}
        self.latest: dict[str, str] = {}
        self.told: set[str] = set()

    def show(self, job: Job, news: News) -> None:
        """Show the news of a job: warnings once for all runs, and where there is no bar, how each run has ended."""
        for warning in news.warnings:
            if warning not in self.told:
                self.told.add(warning)
                err.print(f"warning: {job.name}: {warning}", markup=False)
        if news.trace:
            err.print(news.trace.rstrip(), markup=False)
        if news.row is not None:
            self.latest[job.name] = _latest(news.row, self.metric)
        self.shares[job.name] = news.done
        if news.state != "running":
            del self.shares[job.name]
            self.done += 1
            if self.bar.disable and not self.quiet:
                err.print(f"{job.name}: {news.state}{self.latest.get(job.name, '')}", markup=False)
        latest = f"{job.name}{self.latest.get(job.name, '')}"[: max(0, err.width - _OTHERS)]
        self.bar.update(self.task, completed=self.done + sum(self.shares.values()), latest=latest)


def _latest(row: Row, metric: str) -> str:
    value = row.get(metric)
    return "" if value is None else f"  {metric} {value:.4g}"
