"""One run in its own process, which reports progress to the sweep and asks whether to go on."""

import os
import signal
import time
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import torch

from atoll.experiment.executor_choice import count_cores
from atoll.experiment.experiment import Experiment
from atoll.runs.run import run_events
from atoll.runs.run_folder import Row
from atoll.settings.plugins import import_from
from atoll.settings.sections import Settings
from atoll.support.errors import AtollError
from atoll.trackers import tracked

_TELL_SECONDS = 0.2  # between reports besides rows

Answer = Literal["go on", "stop", "prune"]


@dataclass(frozen=True)
class Job:
    """A run to start, or to continue.

    Attributes:
        name: what it is called in the sweep.
        settings: of the run.
        folder: where to.
        modules: where the user's own modules are found.
        at_once: how many runs the machine's cores are shared by.
    """

    name: str
    settings: Settings
    folder: Path
    modules: tuple[Path, ...] = ()
    at_once: int = 1


@dataclass(frozen=True)
class News:
    """How a job goes.

    Attributes:
        state: running; or, as the last news of a job, finished, stopped (it can be gone on with), pruned or failed.
        done: its events that are over, while it runs.
        events: of the whole run.
        row: the metrics row, if there is a new one.
        warnings: what the user should know.
        executor: which executor trains, and why; told once.
        error: why it failed, in one sentence.
        trace: where, if that was not to be expected.
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
    """Run a job and report on it through the pipe; the process's main function.

    Rows are answered: with "go on", "stop" or "prune". To stop may also be told at any time, as the end of the pipe
    does, so that a run whose sweep is gone does not live on.

    Args:
        job: the run.
        folder: the folder to work in.
        pipe: to the sweep.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the sweep as well, which stops its runs in turn
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(BrokenPipeError):  # the sweep is gone, and the run has been saved
        try:
            os.dup2(2, 1)  # standard output is the sweep's; what the user's code prints is none of its results
            os.chdir(folder)
            for place in job.modules:
                import_from(place)
            torch.set_num_threads(1)
            last = _carry_out(job, pipe)
        except KeyboardInterrupt:
            last = News("stopped")
        except AtollError as error:
            last = News("failed", error=str(error))
        except BaseException as error:  # also what the user's code may raise
            last = News("failed", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
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
                pipe.send(
                    News(
                        "running",
                        progress.events_done,
                        progress.events,
                        progress.row,
                        progress.warnings,
                        told,
                    )
                )
                last_sent = now
            if answer == "go on":
                answer = _listen(pipe, waits=progress.row is not None)
            is_over = progress.events_done == progress.events
            if answer != "go on" and progress.is_settled and not is_over:
                return News("pruned" if answer == "prune" else "stopped")
    return News("finished")


def _listen(pipe: Connection, waits: bool) -> Answer:
    """Return what the sweep says, waiting for it after a row; "go on" if it has said nothing."""
    try:
        if waits or pipe.poll():
            answer: Answer = pipe.recv()
            return answer
    except (EOFError, OSError):  # it is gone
        return "stop"
    return "go on"


def _share_cores(settings: Settings, at_once: int) -> Settings:
    """Let `auto` use no more worker processes than the run's share of the cores; the bits are the same."""
    if at_once == 1 or settings.run.executor not in ("auto", "cores") or settings.run.workers is not None:
        return settings
    run = settings.run.model_copy(update={"workers": max(1, count_cores() // at_once)})
    return settings.model_copy(update={"run": run})
