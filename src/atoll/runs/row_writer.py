"""Measuring a run's rows, writing them to its folder, and what a private run writes beside them."""

from typing import Any

from atoll.engine.run_state import State, Step
from atoll.experiment.experiment import Experiment
from atoll.privacy.ledger import Account, RunLedger
from atoll.runs.checkpointer import Stopwatch
from atoll.runs.fingerprint import digest
from atoll.runs.rows import Recorder
from atoll.runs.run_folder import Row, RunFolder
from atoll.runs.stopping import OnRow, Stopping


class RowWriter:
    """Measures rows, writes each to the run's folder at once, and tells whether it ends the run.

    Attributes:
        rows: all rows so far, those before a resume too.
        events: events of the whole run.
    """

    def __init__(self, recorder: Recorder, folder: RunFolder, rows: list[Row], on_row: OnRow | None) -> None:
        """Go on after these rows, which are in the folder."""
        self.rows = rows
        self.events = len(recorder.schedule)
        self._recorder = recorder
        self._folder = folder
        self._stopping = Stopping(recorder.rules, on_row)
        self._stopping.resume(rows)
        self._clock = Stopwatch(rows[-1]["wall_time"] if rows else 0.0)

    def take(self, step: Step) -> Row | None:
        """Return the row of an event, if it has one."""
        if self._recorder.is_due(step.state.events_done, self._recorder.experiment.settings.run.evaluate_every):
            return self.measure(step.state, step.loss)
        self._recorder.watch(step.state)
        return None

    def measure(self, state: State, local_loss: float | None = None) -> Row:
        """Return the row of a state, which is written first."""
        row = self._recorder.measure(state, local_loss, self._clock.seconds())
        self._folder.append(row)
        self._folder.write_clients(row, self._recorder.probes.by_client)
        self.rows.append(row)
        self._stopping.take(self.rows)
        return row

    def why_over(self, events_done: int) -> str:
        """Return why the run is over after this many events, before its last; or else nothing."""
        return self._stopping.why * (0 < events_done < self.events)

    def summarize(self, events_done: int, ledger: RunLedger | None) -> None:
        """Write the summary of a finished run."""
        made = self._recorder.summarize(self.rows, events_done, self.why_over(events_done))
        self._folder.write_summary(made | spent_in(self._recorder.experiment, ledger))


def account_of(experiment: Experiment) -> Account | None:
    """Return the account of the run's ledger; None without privacy."""
    private = experiment.planned.private
    if private is None:
        return None
    return Account(
        run=digest(experiment.settings),
        clients=len(experiment.population),
        mechanism=private.mechanism,
        cost=private.plan.cost,
        most_releases=private.most_releases,
        is_fleet=private.is_fleet,
    )


def spent_in(experiment: Experiment, ledger: RunLedger | None) -> dict[str, Any]:
    """Return the summary's entry of a private run: what was spent, and what was planned for each cluster."""
    private = experiment.planned.private
    if ledger is None or private is None:
        return {}
    return {"privacy": ledger.summary() | {"clusters": private.plan.table()}}
