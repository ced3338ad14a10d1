"""The progress of a sweep: one run at a time, as `atoll run` shows it, and how many are over."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field

from atoll.cli.common import err
from atoll.cli.interrupts import Interrupts
from atoll.cli.run_progress import Runs
from atoll.sweep.jobs import run_jobs
from atoll.sweep.sweep_worker import Answer, Job, News


@dataclass
class Watched:
    """How the runs ended.

    Attributes:
        failed: the error of each run that failed, by name.
        exit_code: of an interrupted sweep; 0 otherwise.
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
    verbose: bool = False,
    judge: Callable[[Job, News], Answer] | None = None,
    settle: Callable[[Job, News], str] | None = None,
) -> Watched:
    """Carry out runs, `at_once` at a time, until they end or are interrupted; if one fails, the others continue.

    Of `total` runs some were `done` before. `judge` decides from each row whether its run continues; `settle` takes a
    run's last report and returns its error, or an empty text.
    """
    watched, view = Watched(), _View(metric, quiet, verbose, total, done)
    with Interrupts() as interrupts:
        interrupts.is_patient = True
        with suppress(KeyboardInterrupt), view.runs, closing(run_jobs(jobs, at_once, judge)) as steps:
            for step in steps:
                if step is not None:
                    job, news = step
                    view.show(job, news)
                    if news.state != "running":
                        error = settle(job, news) if settle is not None else news.error
                        watched.failed |= {job.name: error} if error else {}
                if interrupts.number is not None:
                    break
        watched.exit_code = 0 if interrupts.number is None else interrupts.exit_code
    return watched


class _View:
    """The two lines of `Runs`, the first of which follows one run until it is over, and lines for other news."""

    def __init__(self, metric: str, quiet: bool, verbose: bool, total: int, done: int) -> None:
        self.runs = Runs(total, quiet)
        self.metric, self.quiet, self.verbose = metric, quiet, verbose
        self.over = self.begun = done
        self.going: dict[str, News] = {}
        self.numbers: dict[str, int] = {}
        self.latest: dict[str, str] = {}
        self.told: set[str] = set()
        self.shown = ""

    def show(self, job: Job, news: News) -> None:
        """Show a job's news: each warning only once for all runs and, without a bar, how each run ended."""
        self._tell(job, news)
        if job.name not in self.numbers:
            self.begun += 1
            self.numbers[job.name] = self.begun
        if news.row is not None:
            value = news.row.get(self.metric)
            self.latest[job.name] = "" if value is None else f"{self.metric} {value:.4g}"
        self.going[job.name] = news
        if news.state != "running":
            del self.going[job.name]
            self.over += 1
            if self.runs.logs:
                measured = f"  {latest}" if (latest := self.latest.get(job.name)) else ""
                err.print(f"{job.name}: {news.state}{measured}")
        self._draw()

    def _tell(self, job: Job, news: News) -> None:
        """Print what does not fit into the two lines."""
        for warning in news.warnings:
            if warning not in self.told:
                self.told.add(warning)
                err.print(f"warning: {job.name}: {warning}")
        if self.verbose and news.executor:
            self.runs.say(f"{job.name}: {news.executor}")
        if news.trace:
            err.print(news.trace.rstrip())

    def _draw(self) -> None:
        if self.shown not in self.going and self.going:
            self.shown = next(iter(self.going))
            self.runs.begin(self.shown, self.numbers[self.shown])
        if (news := self.going.get(self.shown)) is not None:
            self.runs.show(news.done, news.events, self.latest.get(self.shown, ""))
        self.runs.show_all(self.over + sum(each.done / (each.events or 1) for each in self.going.values()))
