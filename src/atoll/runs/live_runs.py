"""Live runs on a fleet: events are recorded as they happen, and the plan may change during the run."""

from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

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
from atoll.support.errors import RunError
from atoll.support.files import append_line, to_json, write_atomically


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
        return self._recorded(folder, recorder, state)

    def on_checkpoint(self, checkpoints: Path) -> Callable[[State], None]:
        """Return the callback of each checkpoint: nodes drop client states that no checkpoint needs any more."""
        kept = deque(kept_by_checkpoints(checkpoints, torch.device("cpu")), maxlen=KEPT)
        self.executor.keep_resumable(tuple(kept))

        def saved(state: State) -> None:
            kept.append(state.clients)
            self.executor.keep_resumable(tuple(kept))

        return saved

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
                write_atomically(folder.measured, to_json(self.executor.measured.as_dict()))

    def _method(self, events_done: int) -> Method:
        """Return the method with the plan from this event on, recording its releases in the ledger."""
        method = self.planner.method(events_done)
        return method if self.ledger is None else replace(method, announce=self.ledger.note)
