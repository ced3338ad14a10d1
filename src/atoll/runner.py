"""Carry out an experiment: the loop around the engine that probes, records and checkpoints."""

from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atoll.checkpoint import drop_others, load_checkpoint
from atoll.engine import State, begin, run
from atoll.errors import InputError, RunError
from atoll.executors import Executor
from atoll.experiment import Experiment
from atoll.metrics import Recorder, first_of
from atoll.network import completion_of
from atoll.origin import Origin, origin_of
from atoll.record import Row, RunFolder, slug
from atoll.saver import Saver, Stopwatch
from atoll.schedules import cut_by_empty


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        events_done: events that are over.
        events: all events.
        row: the metrics row, if this event was probed.
        warnings: what the user should know; with the first progress only.
        is_settled: whether stopping here loses nothing. Else events that were trained together with this one are still
            to be merged, and a run that stops here goes on from before them.
    """

    events_done: int
    events: int
    row: Row | None
    warnings: tuple[str, ...] = ()
    is_settled: bool = True


def carry_out(
    experiment: Experiment, out: Path | str, resume: bool = False, overwrite: bool = False
) -> Generator[Progress]:
    """Run an experiment into a folder, yielding after every event.

    Rows of metrics are written before the first event, then after the first event that completes each
    `run.evaluate_every` rounds, and after the last. A checkpoint is written every `run.checkpoint_minutes`, after every
    `run.checkpoint_every` rounds and the last, and when the run is stopped: by the code around this generator, by
    `KeyboardInterrupt`, which is raised again, or by an error. With `resume` a run goes on from its last checkpoint to
    the same bits; a finished one does nothing.

    Raises:
        InputError: bad settings, or a folder that cannot be used; nothing has been trained then.
        RunError: training became not finite, or the disk failed; rows and checkpoints so far are kept.
    """
    folder = RunFolder(Path(out))
    if not (resume and folder.is_run):
        folder.require_room(overwrite)
    recorder = Recorder(experiment)  # before the folder is made: it may refuse settings
    with closing(experiment.make_executor()) as executor, folder.claimed():
        yield from _carry_out(recorder, executor, folder, resume, overwrite)


def _carry_out(
    recorder: Recorder, executor: Executor, folder: RunFolder, resume: bool, overwrite: bool
) -> Generator[Progress]:
    experiment = recorder.experiment
    method, settings = experiment.method, experiment.settings
    origin = origin_of(settings, executor)
    warnings = [warning for warning in (experiment.executor_choice.warning,) if warning] + warnings_of(experiment)
    state, rows = None, list[Row]()
    if resume and folder.is_finished:
        yield _last(folder, recorder, warnings)
        return
    if resume and folder.is_run:
        state, rows = _restore(folder, recorder, origin, warnings)
    else:
        folder.create(settings, method.schedule, overwrite)
    clock = Stopwatch(rows[-1]["wall_time"] if rows else 0.0)
    if state is None:
        state = begin(method, *experiment.best_start(executor))
        rows.append(recorder.measure(state, None, clock.seconds()))
        folder.append(rows[-1])
    warnings += recorder.warn_of(rows[0])
    yield from _train(executor, folder, recorder, Saver(folder, origin, recorder, state), rows, clock, warnings)


def _train(
    executor: Executor,
    folder: RunFolder,
    recorder: Recorder,
    saver: Saver,
    rows: list[Row],
    clock: Stopwatch,
    warnings: Sequence[str],
) -> Generator[Progress]:
    """Go on from the saver's state to the end, and write the summary."""
    method, total = recorder.experiment.method, len(recorder.schedule)
    state = saver.state
    try:
        yield Progress(state.events_done, total, rows[-1], tuple(warnings))
        for step in run(method, executor, state):
            row, done = None, step.state.events_done
            if recorder.is_due(done, recorder.experiment.settings.run.evaluate_every):
                row = recorder.measure(step.state, step.loss, clock.seconds())
                folder.append(row)
                rows.append(row)
            is_settled = saver.take(step.state)  # only now, since a checkpoint must not come before its row
            yield Progress(done, total, row, is_settled=is_settled)
    except (KeyboardInterrupt, GeneratorExit):  # the user, or the code around this generator, has seen enough
        saver.save()
        raise
    except Exception:  # it is the failure that must be told, even if the disk has failed as well
        with suppress(RunError):
            saver.save()
        raise
    folder.write_summary(recorder.summarize(rows))


def _last(folder: RunFolder, recorder: Recorder, warnings: Sequence[str]) -> Progress:
    """Return how far a finished run is.

    Raises:
        InputError: the folder is of another experiment, or damaged.
    """
    folder.take_over(recorder.experiment.settings)
    rows, total = folder.rows(), len(recorder.schedule)
    recorder.require_all(rows, total)
    return Progress(total, total, rows[-1], (*warnings, *recorder.warn_of(rows[0])))


def _restore(
    folder: RunFolder, recorder: Recorder, origin: Origin, warnings: list[str]
) -> tuple[State | None, list[Row]]:
    """Return the state and the rows to go on from; None, and no rows, without a checkpoint.

    Raises:
        InputError: the folder is of another experiment, or damaged.
    """
    experiment = recorder.experiment
    folder.take_over(experiment.settings)
    first = begin(experiment.method, *experiment.initial_models())
    found = load_checkpoint(folder.path / "checkpoint", first, origin)
    if found is None:
        return None, folder.keep_rows(-1)
    state, told = found
    warnings += told
    drop_others(folder.path / "checkpoint", state.events_done)
    rows = folder.keep_rows(state.events_done)
    recorder.require_all(rows, state.events_done)
    return state, rows


def warnings_of(experiment: Experiment) -> list[str]:
    """Return what the user should know of an experiment's clustering before it runs."""
    warnings, limit = list[str](), experiment.settings.clustering.time_limit
    if len(left_out := experiment.clustering.left_out):
        warnings.append(f"clients that belong to no cluster and never train ({len(left_out)}): {first_of(left_out)}")
    if experiment.settings.clustering.overshoot and experiment.has_network and limit is not None:
        over = np.flatnonzero(completion_of(experiment.networks[0], experiment.clustering.labels) > limit)
        if len(over):
            warnings.append(
                f"aggregators whose completion is above clustering.time_limit = {limit:g}: {first_of(over)}"
            )
    if experiment.needs("phases") and experiment.settings.method.pattern in ("decsyn", "decasy"):
        cut = [phase.round for phase in experiment.phases if cut_by_empty(phase.network, phase.clustering)]
        if cut:
            warnings.append(
                f"from round {cut[0]} on, aggregators without clients cut the others into parts that never "
                "exchange models; another clustering, or a topology with more links, would connect them"
            )
    return warnings


def name_folders(runs: Sequence[Experiment]) -> list[str]:
    """Return the name of each run's folder, from its panel and label.

    Raises:
        InputError: two runs come to the same name.
    """
    names = [" ".join(filter(None, (e.settings.panel, e.settings.label))) for e in runs]
    slugs = [slug(name) or f"run-{i}" for i, name in enumerate(names)]
    if len(set(slugs)) < len(slugs) or "report" in slugs:
        told = ", ".join(map(repr, names))
        raise InputError(f"runs: each needs a panel or label of its own, other than 'report', but they have {told}")
    return slugs
