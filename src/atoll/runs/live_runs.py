"""Live runs on a fleet: events are recorded as they happen, and the plan may change during the run."""

from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import torch

from atoll.engine.live_schedule import LiveRun, follow
from atoll.engine.method import Method
from atoll.engine.run_state import State, Step
from atoll.fleet.server.fleet_executor import FleetExecutor
from atoll.fleet.server.reclustering import Planner
from atoll.privacy.ledger import RunLedger
from atoll.runs.checkpoint import KEPT, kept_by_checkpoints
from atoll.runs.checkpointer import Stopwatch
from atoll.runs.rows import Recorder
from atoll.runs.run_folder import RunFolder
from atoll.schedules.recorded import line_of
from atoll.support.errors import RunError, refusing
from atoll.support.files import append_line, to_json, write_atomically
from atoll.support.untrusted import read_json


@dataclass(eq=False)
class Live:
    """The parts of a run whose clients may fail to answer.

    Attributes:
        is_anyone_there: returns whether any client could answer now.
        warnings: about the nodes and the plan, for the user.
        ledger: of a private run, once open.
    """

    is_anyone_there: Callable[[], bool]
    planner: Planner
    executor: FleetExecutor
    warnings: tuple[str, ...] = ()
    ledger: RunLedger | None = None

    def steps(self, folder: RunFolder, recorder: Recorder, state: State, ledger: RunLedger | None) -> Generator[Step]:
        """Return the events after a state, each recorded before it is yielded; drop what was recorded of later ones."""
        self.ledger = ledger
        self.planner.begin(state.events_done)
        self.executor.attendance.begin(folder.strikes, state.events_done)
        self.executor.notices.begin(folder.refused, state.events_done)
        if state.events_done and folder.measured.exists():
            told = f"--resume: {folder.measured} cannot be read"
            with refusing(told, ValueError, LookupError, TypeError, OverflowError, hint="; remove it to measure anew"):
                self.executor.measured.restore(read_json(folder.measured, folder.path))
        return self._recorded(folder, recorder, state)

    def on_checkpoint(self, folder: RunFolder, keeps_state: bool) -> Callable[[State], None]:
        """Return the callback of each checkpoint: times are kept, and nodes drop client states that none needs."""
        before = kept_by_checkpoints(folder.path / "checkpoint", torch.device("cpu")) if keeps_state else ()
        kept = deque(before, maxlen=KEPT)
        self.executor.keep_resumable(tuple(kept))

        def saved(state: State) -> None:
            self._keep_times(folder)
            kept.append(state.clients)
            self.executor.keep_resumable(tuple(kept))

        return saved

    def _keep_times(self, folder: RunFolder) -> None:
        write_atomically(folder.measured, to_json(self.executor.measured.as_dict()))

    def _recorded(self, folder: RunFolder, recorder: Recorder, state: State) -> Generator[Step]:
        """Yield the events; the plan may change between them, and the clock continues from the last one."""
        past, patience = recorder.events[: state.events_done], recorder.experiment.settings.fleet.wait_seconds
        watch = Stopwatch(past[-1].seconds if past else 0.0)
        live_run = LiveRun(self._method(state.events_done), watch.seconds, self.is_anyone_there, patience)
        before: Mapping[str, int] = state.refused
        try:
            with closing(follow(live_run, self.executor, state, recorder.events)) as steps:
                for step in steps:
                    done, event = step.state.events_done, step.event
                    recorder.take(event)
                    refused = Counter(step.state.refused) - Counter(before)
                    append_line(folder.happened, line_of(event, recorder.schedule.rounds_done(done), refused))
                    before = step.state.refused
                    self.executor.notices.tell(event.index)
                    live_run.method = self._method(done)  # before a checkpoint, so that it has the plan's measurements
                    self.executor.attendance.note(event.index)
                    self.executor.latest = step.state.clients
                    yield step
        finally:
            with suppress(RunError):  # the error that stops the run matters more
                self._keep_times(folder)

    def _method(self, events_done: int) -> Method:
        """Return the method with the plan from this event on, recording its releases in the ledger."""
        method = self.planner.method(events_done)
        return method if self.ledger is None else replace(method, announce=self.ledger.note)
