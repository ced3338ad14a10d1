"""Running an experiment: the loop around the engine that measures, records and saves."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.engine.cohorts import Executor
from atoll.engine.engine import init, train
from atoll.engine.run_state import State, Step
from atoll.experiment.experiment import Experiment
from atoll.privacy.ledger import open_ledger
from atoll.runs.checkpoint import drop_others, load_checkpoint
from atoll.runs.checkpointer import Checkpointer
from atoll.runs.fingerprint import Fingerprint, fingerprint_of
from atoll.runs.going_on import changed_data, is_longer, mend_schedule, require_kind, with_starts
from atoll.runs.row_writer import RowWriter, account_of
from atoll.runs.rows import Recorder
from atoll.runs.run_folder import Row, RunFolder
from atoll.runs.spilling import place_states
from atoll.runs.stopping import OnRow
from atoll.runs.warnings import warnings_of
from atoll.schedules.schedule_files import digest_of, keep_events, read_schedule
from atoll.support.errors import InputError, RunError, telling_of_gpus

if TYPE_CHECKING:  # what only runs on a fleet need is imported by them: it takes a third of a second
    from atoll.fleet.agreed.transport import Fleet
    from atoll.runs.live_runs import Live


@dataclass(frozen=True)
class RunProgress:
    """How far a run is.

    Attributes:
        events_done: events completed.
        row: the row of metrics, if this event has one.
        warnings: for the user; with the first progress only.
        is_settled: whether stopping here loses nothing. Otherwise events trained together with this one are not merged
            yet, and a run stopped here resumes from before them.
        stopped: why the run ended before its last round; empty if it did not.
    """

    events_done: int
    events: int
    row: Row | None
    warnings: tuple[str, ...] = ()
    is_settled: bool = True
    stopped: str = ""


def run_events(
    experiment: Experiment,
    out: Path | str,
    resume: bool = False,
    overwrite: bool = False,
    fleet: "Fleet | None" = None,
    schedule: Path | str | None = None,
    tell: Callable[[str], None] = lambda _: None,
    on_row: OnRow | None = None,
) -> Generator[RunProgress]:
    """Run an experiment into a folder, yielding after every event.

    Rows of metrics are written before the first event, then after the first event that completes each
    `run.evaluate_every` rounds, and after the last; `run.stop_at` may end the run after any of them. A checkpoint is
    written every `run.checkpoint_minutes`, after every `run.checkpoint_every` rounds and the last, and when the run is
    stopped: by the code around this generator, by `KeyboardInterrupt`, which is raised again, or by an error. With
    `resume` a run continues from its last checkpoint, bit-identically; a finished one does nothing, unless it has more
    rounds now than it was begun with.

    With a fleet clients train on its nodes, whatever `run.executor`, and ``happened.jsonl`` gets a line for each event
    (`atoll.engine.live_schedule`). With a schedule, such as that file of another run, its events replace the method's.

    Args:
        experiment: the experiment.
        out: the folder of the run.
        resume: continue from the last checkpoint, if there is a run.
        overwrite: replace the run in the folder.
        fleet: the clients' machines; closed at the end of the run.
        schedule: a run folder's ``happened.jsonl`` or ``schedule.npz``.
        tell: called with a sentence whenever something changes while waiting for nodes.
        on_row: called with each new row of metrics; if it returns something true after training has begun, the run
            ends there, as finished.

    Raises:
        InputError: bad settings, or an unusable folder; nothing has been trained then.
        RunError: training diverged, the disk or a GPU failed, or clients stay away; rows and checkpoints are kept.
    """
    if schedule is not None:
        from atoll.runs.variants import replaying

        experiment = replaying(experiment, schedule)
    if fleet is not None:
        from atoll.runs.variants import join, with_fleet

        experiment = with_fleet(experiment)
    folder = RunFolder(Path(out))
    if not (resume and folder.is_run):
        folder.require_room(overwrite)
    recorder = Recorder(experiment, is_live=fleet is not None)  # before the folder is created: it may reject settings
    if fleet is None:
        with telling_of_gpus(), closing(experiment.execution.make_executor()) as executor, folder.claimed():
            yield from _carry_out(recorder, executor, folder, resume, overwrite, on_row)
        return
    from atoll.fleet.server.reclustering import Planner
    from atoll.runs.live_runs import Live

    with closing(fleet), folder.claimed():
        if resume and folder.is_finished:
            if why := folder.stopped_otherwise(recorder.experiment.settings):
                told = f"--resume: {folder.path} stopped {why}, and a run on a fleet cannot be continued"
                raise InputError(f"{told}; begin a new one with model.start = '{folder.path}'")
            yield _last(folder, recorder, [], is_live=True)
            return
        executor, joined = join(experiment, fleet, tell)
        planner = Planner(experiment, executor, joined, folder.clusterings, resume and folder.is_run, tell)
        if planner.experiment is not experiment:
            recorder = Recorder(planner.experiment, is_live=True)
        live = Live(lambda: bool(fleet.nodes()), planner, executor, (*joined.warnings, *planner.warnings))
        yield from _carry_out(recorder, executor, folder, resume, overwrite, on_row, live)


def _carry_out(
    recorder: Recorder,
    executor: Executor,
    folder: RunFolder,
    resume: bool,
    overwrite: bool,
    on_row: OnRow | None,
    live: "Live | None" = None,
) -> Generator[RunProgress]:
    experiment = recorder.experiment
    method, settings = experiment.method, experiment.settings
    replayed = None if experiment.schedule is None else digest_of(experiment.schedule)
    origin = fingerprint_of(settings, executor, replayed)
    warnings = [warning for warning in (experiment.execution.choice.warning,) if warning] + warnings_of(experiment)
    warnings += live.warnings if live else ()
    state, rows, account = None, list[Row](), account_of(experiment)
    longer = resume and folder.is_run and live is None and is_longer(folder, recorder)
    if resume and folder.is_finished and not longer:
        yield _last(folder, recorder, warnings, is_live=live is not None)
        return
    if resume and folder.is_run:
        state, rows = _restore(folder, recorder, origin, warnings, live is not None, longer)
    else:
        folder.create(settings, method.schedule, overwrite, live is not None, replayed, account)
    done = 0 if state is None else state.events_done
    ledger = None if account is None else open_ledger(folder.path, account, done)
    method = method if ledger is None else replace(method, announce=ledger.note)
    recorder.ledger = ledger if live else None
    writer = RowWriter(recorder, folder, rows, on_row)
    if state is None:
        state = init(method, *experiment.training.best_start(executor))
        writer.measure(state)
    state = place_states(state, folder.path / "checkpoint", settings.run.state_bytes)
    warnings += recorder.warn_of(rows[0])
    by_arrival = live is not None and method.arrivals is not None
    steps = live.steps(folder, recorder, state, ledger) if live else train(method, executor, state)
    if resume and not longer:  # nothing is refused from here on
        folder.take_over(settings)
    told = live.on_checkpoint(folder, method.keeps_state) if live else None
    saver = Checkpointer(folder, origin, recorder, state, by_arrival, told)
    yield from _train(steps, writer, saver, warnings)
    writer.summarize(saver.state.events_done, ledger)


def _train(
    steps: Generator[Step], writer: RowWriter, saver: Checkpointer, warnings: Sequence[str]
) -> Generator[RunProgress]:
    """Take the steps that are left, until the last, or until a row ends the run."""

    def progress(row: Row | None, is_settled: bool = True) -> RunProgress:
        return RunProgress(done, done if why else writer.events, row, is_settled=is_settled, stopped=why)

    done = saver.state.events_done
    if (why := writer.why_over(done)) and writer.rows[-1]["event"] < done:
        writer.measure(saver.state)
    try:
        yield replace(progress(writer.rows[-1]), warnings=tuple(warnings))
        with closing(steps):
            while not why and (step := next(steps, None)) is not None:
                row, done = writer.take(step), step.state.events_done
                is_settled = saver.take(step.state)  # after its row, which a checkpoint must not precede
                if is_settled and (why := writer.why_over(done)):
                    row = row or writer.measure(step.state)  # of the model that is saved
                    saver.save()
                yield progress(row, is_settled)
    except (KeyboardInterrupt, GeneratorExit):  # the user, or the code around this generator, stops here
        saver.save()
        raise
    except Exception:  # report this error, even if the disk has failed too, or the state was on a GPU that is lost
        with suppress(RunError, RuntimeError):
            saver.save()
        raise


def _last(folder: RunFolder, recorder: Recorder, warnings: Sequence[str], is_live: bool) -> RunProgress:
    """Return the progress of a finished run."""
    require_kind(folder, is_live, recorder.experiment.schedule)
    folder.require_same(recorder.experiment.settings)
    rows, summary = folder.rows(), folder.summary()
    if is_live:  # nodes' reports may have made another plan than the settings
        recorder.schedule = read_schedule(folder.happened, "--resume")
    stopped = str(summary.get("stopped", ""))
    total = int(summary["events"]) if stopped else len(recorder.schedule)
    recorder.require_all(rows, total, is_over=True)
    if account := account_of(recorder.experiment):
        open_ledger(folder.path, account, total)
    return RunProgress(total, total, rows[-1], (*warnings, *recorder.warn_of(rows[0])), stopped=stopped)


def _restore(
    folder: RunFolder, recorder: Recorder, origin: Fingerprint, warnings: list[str], is_live: bool, longer: bool
) -> tuple[State | None, list[Row]]:
    """Return the state and rows to resume from; None, and no rows, without a checkpoint."""
    experiment = recorder.experiment
    require_kind(folder, is_live, experiment.schedule)
    if not longer:
        folder.require_same(experiment.settings)
    if told := changed_data(folder, experiment.settings):
        raise InputError(f"--resume: {told}; undo that, or add --overwrite to start again")
    first = init(experiment.method, *experiment.training.initial_models())
    loaded = load_checkpoint(folder.path / "checkpoint", first, origin)
    done = 0 if loaded is None else loaded[0].events_done
    if is_live:
        for event in keep_events(folder.happened, done):
            recorder.take(event)
    every, before = experiment.settings.run.evaluate_every, [row for row in folder.rows() if row["event"] <= done]
    rows = [row for row in before if not row["event"] or recorder.is_due(row["event"], every)]
    if loaded is not None:
        recorder.require_all(rows, done)
    if longer:  # nothing is refused from here on
        folder.lengthen(experiment.settings, recorder.schedule)
    else:
        warnings += mend_schedule(folder, experiment.method.schedule)
    folder.keep_rows([] if loaded is None else rows)
    (folder.path / "checkpoint").mkdir(exist_ok=True)
    if loaded is None:
        return None, []
    warnings += loaded[1]
    drop_others(folder.path / "checkpoint", done)
    return with_starts(loaded[0], recorder.events), rows
