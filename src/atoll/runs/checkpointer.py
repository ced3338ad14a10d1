"""Decides when a run's checkpoints are written."""

import time
from collections.abc import Callable

from atoll.engine.run_state import State
from atoll.runs.checkpoint import save_checkpoint
from atoll.runs.fingerprint import Fingerprint
from atoll.runs.rows import Recorder
from atoll.runs.run_folder import RunFolder


class Checkpointer:
    """Writes checkpoints of states from which a run resumes bit-identically.

    Independent events train together, and an executor such as `Stacked` rounds differently if the groups differ. So a
    run resumes only from a state between groups, and only if later rows need nothing but the state
    (`Recorder.may_resume_from`).

    Attributes:
        state: the last such state.
    """

    def __init__(
        self,
        folder: RunFolder,
        origin: Fingerprint,
        recorder: Recorder,
        state: State,
        by_arrival: bool = False,
        saved: Callable[[State], None] | None = None,
    ) -> None:
        """Start with a state that need not be saved: the first, or that of a checkpoint.

        With `by_arrival` no events train together: a resumed run restarts all clusters' work. `saved` is called with
        each saved state.
        """
        self.state = state
        self._place = folder.path / "checkpoint"
        self._origin = origin
        self._recorder = recorder
        self._by_arrival = by_arrival
        self._tell_saved = saved
        self._saved = state.events_done
        self._together = self._end_of_group(state.events_done)
        self._since = Stopwatch()
        self._is_due = False

    def take(self, state: State) -> bool:
        """Take the state after an event, and save it if due; return whether a run can resume from it."""
        done, limits = state.events_done, self._recorder.experiment.settings.run
        if limits.checkpoint_every:
            self._is_due |= self._recorder.is_due(done, limits.checkpoint_every)
        if done < self._together:
            return False
        self._together = self._end_of_group(done)
        if not self._recorder.may_resume_from(done):
            return False
        self.state = state
        is_last = done == len(self._recorder.schedule)
        if self._is_due or is_last or self._since.seconds() >= 60 * limits.checkpoint_minutes:
            self.save()
        return True

    def save(self) -> None:
        """Save the state, unless it was saved last."""
        if self.state.events_done == self._saved:
            return
        save_checkpoint(self._place, self.state, self._origin)
        if self._tell_saved:
            self._tell_saved(self.state)
        self._saved, self._since, self._is_due = self.state.events_done, Stopwatch(), False

    def _end_of_group(self, done: int) -> int:
        """Return the number of events done once those training together next are."""
        apart = self._recorder.experiment.method.keeps_state
        return done + (1 if self._by_arrival else len(self._recorder.schedule.ready(done, apart)))


class Stopwatch:
    """Wall-clock seconds, including an earlier part of the run."""

    def __init__(self, before: float = 0.0) -> None:
        self._began = time.perf_counter() - before

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self._began
