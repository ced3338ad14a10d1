"""Logging a run's rows as they arrive, each exactly once."""

import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from atoll.runs.run import RunProgress
from atoll.runs.run_folder import Row, RunFolder
from atoll.settings.validation import Settings
from atoll.support.errors import AtollError, InputError, RunError
from atoll.trackers.mlflow import open_mlflow, require_mlflow
from atoll.trackers.tensorboard import open_tensorboard, require_tensorboard
from atoll.trackers.tracker import Opened, Tracked, numbers_of
from atoll.trackers.wandb import open_wandb, require_wandb

TRACKERS: Mapping[str, tuple[Callable[[], object], Callable[[Tracked], Opened]]] = {
    "tensorboard": (require_tensorboard, open_tensorboard),
    "mlflow": (require_mlflow, open_mlflow),
    "wandb": (require_wandb, open_wandb),
}
"""By the names in `run.trackers`: a check that the package is installed, and a function that opens the tracker."""


def require_trackers(settings: Settings) -> None:
    """Refuse trackers whose packages are not installed, before anything is written."""
    for name in settings.run.trackers:
        require, _ = TRACKERS[name]
        require()


def tracked(
    steps: Generator[RunProgress], settings: Settings, place: Path, resume: bool = False
) -> Generator[RunProgress]:
    """Pass a run's progress on and log its rows to the trackers in `run.trackers`, below ``trackers/``.

    Rows that a tracker lacks are taken from ``metrics.jsonl``, so a resumed run continues in the same tracker run
    without gaps or duplicate rows, and a tracker that is enabled later gets all rows. A tracker that fails during the
    run is dropped with a warning; the run continues.

    Args:
        steps: the run, as `atoll.runs.run.run_events` yields it; it is closed with this generator.
        place: the run's folder.
        resume: as for `run_events`; if false, what trackers hold of an earlier run in the folder is removed.
    """
    require_trackers(settings)
    folder = RunFolder(place)
    goes_on = resume and folder.is_run
    trackers: _Trackers | None = None
    try:
        with closing(steps):
            for progress in steps:
                warnings: list[str] = []
                if trackers is None:
                    trackers = _open(settings, place / "trackers", goes_on)
                    warnings = trackers.log(folder.rows())
                elif progress.row is not None:
                    warnings = trackers.log([progress.row])
                yield replace(progress, warnings=(*progress.warnings, *warnings))
    except BaseException:
        if trackers is not None:
            with suppress(AtollError):  # the error to report is the one that stops the run
                trackers.close(None)
        raise
    if trackers is not None:
        trackers.close(folder.summary())


class _Trackers:
    """The opened trackers by name; one that fails is dropped."""

    def __init__(self) -> None:
        self.opened: dict[str, Opened] = {}

    def log(self, rows: Sequence[Row]) -> list[str]:
        """Log the rows that a tracker lacks; return warnings about trackers that fail."""
        warnings = list[str]()
        for name, tracker in list(self.opened.items()):
            try:
                for row in rows:
                    if row["event"] > tracker.logged:
                        tracker.log(row["event"], numbers_of({**row, "event": None}))  # it is the step
            except Exception as error:  # a tracker's package may raise anything
                del self.opened[name]
                warnings.append(
                    f"run.trackers: {name} failed and is skipped from here on ({_first_line(error)}); "
                    "--resume logs what is missing, even after the run has finished"
                )
        return warnings

    def close(self, summary: Row | None) -> None:
        """Write everything; with the summary if the run is finished."""
        failed = list[str]()
        numbers = None if summary is None else numbers_of(summary)
        for name, tracker in self.opened.items():
            try:
                tracker.close(numbers)
            except Exception as error:  # as above
                failed.append(f"{name} ({_first_line(error)})")
        self.opened.clear()
        if failed:
            raise RunError(
                f"run.trackers: could not be closed: {', '.join(failed)}; the run's own folder is complete, and "
                "--resume tries again"
            )


def _open(settings: Settings, place: Path, goes_on: bool) -> _Trackers:
    """Open a run's trackers in folders of their own; unless the run `goes_on`, old tracker folders are removed."""
    if not goes_on:
        for name in TRACKERS:
            shutil.rmtree(place / name, ignore_errors=True)
        with suppress(OSError):  # it holds other files, or does not exist
            place.rmdir()
    trackers = _Trackers()
    for name in dict.fromkeys(settings.run.trackers):
        folder = place / name
        try:
            is_there = folder.is_dir()
            folder.mkdir(parents=True, exist_ok=True)
            trackers.opened[name] = TRACKERS[name][1](Tracked(settings, folder, goes_on and is_there))
        except Exception as error:  # a tracker's package may raise anything
            with suppress(RunError):
                trackers.close(None)
            raise InputError(f"run.trackers: {name} cannot be opened ({_first_line(error)})") from error
    return trackers


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
