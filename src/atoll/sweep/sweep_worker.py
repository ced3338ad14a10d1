"""One run in its own process, which reports progress to the sweep and asks whether to continue."""

import os
import signal
import time
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal
from warnings import simplefilter

import torch

from atoll.experiment.executor_choice import count_cores
from atoll.experiment.experiment import Experiment
from atoll.runs.run import run_events
from atoll.runs.run_folder import Row
from atoll.settings.plugins import import_from
from atoll.settings.validation import Settings
from atoll.support.errors import AtollError, SettingWarning, full_disk, is_full
from atoll.trackers import tracked

_TELL_SECONDS = 0.2  # between reports besides rows

Answer = Literal["go on", "stop", "prune"]


@dataclass(frozen=True)
class Job:
    """A run to start or to continue.

    Attributes:
        name: its name in the sweep.
        modules: where the user's own modules are found.
        at_once: how many runs share the machine's cores.
    """

    name: str
    settings: Settings
    folder: Path
    modules: tuple[Path, ...] = ()
    at_once: int = 1


@dataclass(frozen=True)
class News:
    """A report on a job.

    Attributes:
        state: running; or, in a job's last report, finished, stopped (it can be resumed), pruned or failed.
        done: events completed, while it runs.
        events: events in all.
        row: the metrics row, if there is a new one.
        warnings: for the user.
        executor: which executor trains, and why; reported once.
        error: why it failed, in one sentence.
        trace: the traceback of an unexpected error.
    """

    state: Literal["running", "finished", "stopped", "pruned", "failed"]
    done: int = 0
    events: int = 0
    row: Row | None = None
    warnings: tuple[str, ...] = ()
    executor: str = ""
    error: str = ""
    trace: str = ""


def work(job: Job, folder: Path, pipe: Connection) -> None:
    """Run a job and report on it through the pipe to the sweep: the main function of the run's process.

    The sweep answers each row with "go on", "stop" or "prune". It may also say "stop" at any time, and so does the end
    of the pipe, so that a run does not outlive its sweep. `folder` is the working directory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the sweep too, which then stops its runs
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(BrokenPipeError):  # the sweep is gone, and the run has been saved
        try:
            os.dup2(2, 1)  # standard output is for the sweep's results, not for what the user's code prints
            os.chdir(folder)
            for place in job.modules:
                import_from(place)
            torch.set_num_threads(1)
            simplefilter("ignore", SettingWarning)  # the sweep has shown its user what settings do
            last = _carry_out(job, pipe)
        except KeyboardInterrupt:
            last = News("stopped")
        except AtollError as error:
            last = News("failed", error=full_disk(error) if is_full(error) else str(error))
        except BaseException as error:  # also what the user's code may raise
            told = full_disk(error) if is_full(error) else f"{type(error).__name__}: {error}"
            last = News("failed", error=told, trace="" if is_full(error) else traceback.format_exc())
        pipe.send(last)
        pipe.close()


def _carry_out(job: Job, pipe: Connection) -> News:
    settings = _share_cores(job.settings, job.at_once)
    experiment = Experiment(settings)
    steps = tracked(run_events(experiment, job.folder, resume=True), settings, job.folder, resume=True)
    answer: Answer = "go on"
    last_sent = 0.0
    with closing(steps):
        for progress in steps:
            now = time.monotonic()
            if progress.row is not None or progress.warnings or now - last_sent > _TELL_SECONDS:
                told = "" if last_sent else f"run.executor = {settings.run.executor!r}: {experiment.execution.choice}"
                done = progress.events_done, progress.events
                pipe.send(News("running", *done, progress.row, progress.warnings, told))
                last_sent = now
            if answer == "go on":
                answer = _listen(pipe, waits=progress.row is not None)
            is_over = progress.events_done == progress.events
            if answer != "go on" and progress.is_settled and not is_over:
                return News("pruned" if answer == "prune" else "stopped")
    return News("finished")


def _listen(pipe: Connection, waits: bool) -> Answer:
    """Return the sweep's answer, waiting for it after a row; "go on" if there is none."""
    try:
        if waits or pipe.poll():
            answer: Answer = pipe.recv()
            return answer
    except (EOFError, OSError):  # the sweep is gone
        return "stop"
    return "go on"


def _share_cores(settings: Settings, at_once: int) -> Settings:
    """Limit `auto` and `cores` to the run's share of the cores; results are bit-identical."""
    if at_once == 1 or settings.run.executor not in ("auto", "cores") or settings.run.workers is not None:
        return settings
    return settings.but("run", workers=max(1, count_cores() // at_once))
