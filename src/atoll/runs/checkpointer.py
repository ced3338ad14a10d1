"""When a run's checkpoints are written."""

import time
from collections.abc import Callable

from atoll.engine.engine import State
from atoll.runs.checkpoint import save_checkpoint
from atoll.runs.fingerprint import Fingerprint
from atoll.runs.rows import Recorder
from atoll.runs.run_folder import RunFolder


class Checkpointer:
    """Writes a run's checkpoints, only of states from which it resumes to the same bits.

    Events that do not depend on each other are trained together, and an executor such as `Stacked` rounds differently
    when they are grouped differently. So a run resumes only from a state in which no group is under way, and none that
    rows to come need more of than the state (`Recorder.may_resume_from`).

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
        saved: Callable[[State], None] = lambda _: None,
    ) -> None:
        """Begin with a state that need not be saved: the first one, or that of a checkpoint.

        With `by_arrival` no events train together: a resumed run begins all clusters' work again. `saved` is called
        with each state that was saved.
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
        """Note the state after an event, and save it when it is time; return whether a run resumes from it.

        Raises:
            RunError: the checkpoint cannot be written; the one before is kept.
        """
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
        """Save the state, if it is not the one that was saved last."""
        if self.state.events_done == self._saved:
            return
        save_checkpoint(self._place, self.state, self._origin)
        self._tell_saved(self.state)
        self._saved, self._since, self._is_due = self.state.events_done, Stopwatch(), False

    def _end_of_group(self, done: int) -> int:
        """Return how many events are done once those that then train together are."""
        apart = self._recorder.experiment.method.keeps_state
        return done + (1 if self._by_arrival else len(self._recorder.schedule.ready(done, apart)))


class Stopwatch:
    """Wall-clock seconds, counted on from an earlier part of the run."""

    def __init__(self, before: float = 0.0) -> None:
        """Start."""
        self._began = time.perf_counter() - before

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self._began
