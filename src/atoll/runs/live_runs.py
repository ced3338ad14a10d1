"""Live runs on a fleet: events are recorded as they happen, and the plan may change during the run."""

from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atoll.engine.cohorts import Executor
from atoll.engine.engine import Method, State, Step
from atoll.engine.live_schedule import LiveRun, follow
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

    def method(self, events_done: int) -> Method:
        """Return the method with the plan from this event on, recording its releases in the ledger."""
        method = self.planner.method(events_done)
        return method if self.ledger is None else replace(method, announce=self.ledger.note)


def _live_run(recorder: Recorder, state: State, live: Live) -> LiveRun:
    """Return the driver of a live run; its clock continues from the last event."""
    past, fleet_settings = recorder.events[: state.events_done], recorder.experiment.settings.fleet
    watch = Stopwatch(past[-1].seconds if past else 0.0)
    return LiveRun(live.method(state.events_done), watch.seconds, live.is_anyone_there, fleet_settings.wait_seconds)


def letting_nodes_drop(live: Live, checkpoints: Path) -> Callable[[State], None]:
    """Return the callback of each checkpoint: nodes drop client states that no checkpoint needs any more."""
    executor = live.executor
    kept = deque(kept_by_checkpoints(checkpoints, torch.device("cpu")), maxlen=KEPT)
    executor.keep_resumable(tuple(kept))

    def saved(state: State) -> None:
        kept.append(state.clients)
        executor.keep_resumable(tuple(kept))

    return saved


def recorded(live: Live, executor: Executor, folder: RunFolder, recorder: Recorder, state: State) -> Generator[Step]:
    """Yield the events of a live run, each recorded first; the plan may change between them."""
    live_run = _live_run(recorder, state, live)
    before: Mapping[str, int] = state.refused
    try:
        with closing(follow(live_run, executor, state, recorder.events)) as steps:
            for step in steps:
                done, event = step.state.events_done, step.event
                recorder.take(event)
                refused = Counter(step.state.refused) - Counter(before)
                append_line(folder.happened, line_of(event, recorder.schedule.rounds_done(done), refused))
                before = step.state.refused
                live.executor.notices.tell(event.index)
                live_run.method = live.method(done)  # before a checkpoint, so that the checkpoint has its measurements
                live.executor.attendance.note(event.index)
                yield step
    finally:
        with suppress(RunError):  # the error that stops the run matters more
            write_atomically(folder.measured, to_json(live.executor.measured.as_dict()))
