"""The progress of runs: in a terminal two lines, for the run and for all runs; elsewhere a line now and then."""

import time
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from atoll.cli.common import err
from atoll.support.units import format_seconds
from atoll.support.wording import counted

LOG_SECONDS = 30.0  # between lines without a terminal
_TITLE = 24  # characters of a run's title
_OTHERS = 22 + 12 + 1 + 8 + 5  # columns of bar, counter, remaining time and the gaps between them


class Runs:
    """Shows the current run, and how many runs are over."""

    def __init__(self, count: int, quiet: bool, log_seconds: float = LOG_SECONDS) -> None:
        """Prepare for `count` runs; `quiet` shows nothing."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[latest]}", markup=False),
        )
        self.bars = Progress(*columns, console=err, disable=quiet or not err.is_terminal)
        self.count, self.number, self.log_seconds = count, 0, log_seconds
        self.logs = not quiet and not err.is_terminal
        self._all = self.bars.add_task(_fit("all runs"), total=count, latest="") if count > 1 else None
        self._run = self.bars.add_task("", total=None, latest="", visible=False)
        self.title, self.latest, self._told, self._begun = "", "", time.monotonic(), time.monotonic()

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Stop, leaving the last lines in place."""
        self.bars.stop()

    def begin(self, title: str, number: int | None = None) -> None:
        """Show the next run, or the one with this number, from 1."""
        self.number = self.number + 1 if number is None else number
        self.title = f"run {self.number} of {self.count}, {title}" if self.count > 1 else title
        self.latest, self._begun = "", time.monotonic()
        self.bars.reset(self._run, total=None, visible=True, latest="", description=_fit(title))

    def show(self, done: int, total: int, latest: str = "") -> None:
        """Show how many events of the run are over, and the latest measurement, if there is a new one."""
        self.latest = latest or self.latest
        room = max(0, err.width - _TITLE - _OTHERS)
        self.bars.update(self._run, completed=done, total=total, latest=self.latest[:room])
        self.show_all(self.number - 1 + (done / total if total else 1))
        now = time.monotonic()
        if self.logs and now - self._told >= self.log_seconds:
            self._told = now
            about = f", about {format_seconds((now - self._begun) * (total - done) / done)} left" if done else ""
            measured = f", {self.latest}" if self.latest else ""
            err.print(f"{self.title}: {done:,} of {counted(total, 'event')}{about}{measured}")

    def show_all(self, over: float) -> None:
        """Show how many runs are over, counting those under way by the share done."""
        if self._all is not None:
            self.bars.update(self._all, completed=over)

    def say(self, sentence: str) -> None:
        """Print a line above the bars, wrapped between words."""
        err.print(sentence, soft_wrap=not err.is_terminal)


def describe(row: dict[str, Any]) -> str:
    """Return a row of metrics in short."""
    accuracy = "" if row["test_accuracy"] is None else f"  accuracy {row['test_accuracy']:.3f}"
    return f"loss {row['train_loss']:.4f}{accuracy}  virtual {format_seconds(row['virtual_time'])}"


def _fit(title: str) -> str:
    """Return a title cut or padded to the same width in every line."""
    return f"{title if len(title) <= _TITLE else title[: _TITLE - 3] + '...':{_TITLE}}"
