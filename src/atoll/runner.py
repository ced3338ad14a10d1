"""Carry out an experiment: the loop around the engine that probes, records and checkpoints."""

import itertools
import math
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atoll.checkpoint import load_checkpoint, save_checkpoint
from atoll.engine import State, begin, run
from atoll.errors import InputError, RunError
from atoll.executors import Executor
from atoll.experiment import Experiment
from atoll.network import completion_of
from atoll.probes import make_probe
from atoll.record import Row, RunFolder, slug
from atoll.schedules import Ids, cut_by_empty
from atoll.settings import Settings


@dataclass(frozen=True)
class Progress:
    """How far a run is: events done of all events, and the metrics row if this event was probed."""

    events_done: int
    events: int
    row: Row | None
    warnings: tuple[str, ...] = ()


def carry_out(
    experiment: Experiment, out: Path | str, resume: bool = False, overwrite: bool = False
) -> Generator[Progress]:
    """Run an experiment into a folder, yielding after every event.

    Rows of metrics are written before the first event, then after the first event that completes each
    `run.evaluate_every` rounds, and after the last. A checkpoint follows every `run.checkpoint_every` rounds and the
    last, and is written when the caller stops early or the user interrupts. With `resume` a run goes on from its last
    checkpoint to the same bits; a finished one does nothing.

    Raises:
        InputError: bad settings, or a folder that cannot be used; nothing has been trained then.
        RunError: training became not finite, or the disk failed; rows and checkpoints so far are kept.
    """
    with closing(experiment.make_executor()) as executor:
        yield from _carry_out(experiment, executor, RunFolder(Path(out)), resume, overwrite)


def _carry_out(
    experiment: Experiment, executor: Executor, folder: RunFolder, resume: bool, overwrite: bool
) -> Generator[Progress]:
    recorder = Recorder(experiment)
    method, settings = experiment.method, experiment.settings
    warnings = warnings_of(experiment)
    state, rows = begin(method, *experiment.initial_models()), list[Row]()
    if resume and folder.is_run:
        state, rows = _restore(folder, settings, state, warnings)
    else:
        folder.create(settings, method.schedule, overwrite)
    if not state.events_done:
        state = begin(method, *experiment.best_start(executor))
    clock = Stopwatch(rows[-1]["wall_time"] if rows else 0.0)
    total = len(method.schedule)
    if not rows:
        rows.append(recorder.measure(state, None, clock.seconds()))
        folder.append(rows[-1])
        warnings += recorder.warn_of(rows[-1])
    try:
        yield Progress(state.events_done, total, rows[-1], tuple(warnings))
        if folder.is_finished:
            return
        for step in run(method, executor, state):
            row, done = None, step.state.events_done
            if recorder.is_due(done, settings.run.evaluate_every):
                row = recorder.measure(step.state, step.loss, clock.seconds())
                folder.append(row)
                rows.append(row)
            state = step.state  # only now, since a checkpoint must not come before its row
            if recorder.is_due(done, settings.run.checkpoint_every):
                _save(folder, state)
            yield Progress(done, total, row)
    except (KeyboardInterrupt, GeneratorExit):  # the user, or the code around this generator, has seen enough
        if not folder.is_finished:
            _save(folder, state)
        raise
    folder.write_summary(recorder.summarize(rows))


def _save(folder: RunFolder, state: State) -> None:
    save_checkpoint(folder.path / "checkpoint", state)


def _restore(folder: RunFolder, settings: Settings, first: State, warnings: list[str]) -> tuple[State, list[Row]]:
    """Return the state and the rows to go on from, `first` without a checkpoint; refuse another experiment's folder."""
    folder.require_same(settings)
    found = load_checkpoint(folder.path / "checkpoint", first)
    if found is None:
        return first, folder.keep_rows(0)
    state, damaged = found
    warnings += damaged
    return state, folder.keep_rows(state.events_done)


class Stopwatch:
    """Wall-clock seconds, counted on from an earlier part of the run."""

    def __init__(self, before: float) -> None:
        """Start."""
        self._began = time.perf_counter() - before

    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.perf_counter() - self._began


class Recorder:
    """Turns states into rows of metrics, and rows into the summary."""

    def __init__(self, experiment: Experiment) -> None:
        """Count what the schedule costs."""
        self.experiment = experiment
        self.schedule = experiment.method.schedule
        self.probe, self.samples = make_probe(experiment)
        self.bytes = experiment.message_bytes
        events = self.schedule.events
        self.updates = [0, *itertools.accumulate(event.client_updates for event in events)]
        self.down = [0, *itertools.accumulate(event.models_down for event in events)]
        self.up = [0, *itertools.accumulate(event.models_up for event in events)]

    def is_due(self, events_done: int, every: int) -> bool:
        """Return whether this event completed a multiple of `every` rounds, or was the last."""
        before, now = (self.schedule.rounds_done(max(e, 0)) // every for e in (events_done - 1, events_done))
        return now > before or events_done == len(self.schedule)

    def measure(self, state: State, local_loss: float | None, wall_time: float) -> Row:
        """Return the metrics row of a state.

        Raises:
            RunError: the loss, or another number of the row, is not finite.
        """
        done = state.events_done
        row: Row = {
            "event": done,
            "round": self.schedule.rounds_done(done),
            "virtual_time": self.schedule.events[done - 1].seconds if done else 0.0,
            "wall_time": round(wall_time, 3),
            **self.probe(state),
            "local_loss": local_loss,
            "client_updates": self.updates[done],
            "bytes_up": self.up[done] * self.bytes,
            "bytes_down": self.down[done] * self.bytes,
        }
        if broken := [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]:
            raise RunError(f"{self._where(done)}: {broken[0]} is not finite; the rows before it are kept")
        return row

    def warn_of(self, first: Row) -> list[str]:
        """Return what the row before training gives reason to warn of."""
        taken = first.get("cluster_clients", [])
        if len(taken) < 2 or sum(count > 0 for count in taken) > 1:
            return []
        return [
            f"at the start all clients choose cluster {taken.index(max(taken))} of {len(taken)}, so others may stay "
            "unused; method.restarts tries several starts"
        ]

    def _where(self, done: int) -> str:
        if not done:
            return "before training"
        event = self.schedule.events[done - 1]
        clusters = ", ".join(map(str, event.active))
        return f"after event {event.index}, cluster {clusters}, clients {_first(event.cohort)}"

    def summarize(self, rows: list[Row]) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        accuracies = [row["test_accuracy"] for row in rows if row["test_accuracy"] is not None]
        summary: dict[str, Any] = {
            "final": rows[-1],
            "best_test_accuracy": max(accuracies, default=None),
            "events": len(self.schedule),
            "rounds": self.schedule.rounds,
            "clients": len(self.experiment.population),
            "cluster_sizes": self.experiment.clustering.sizes.tolist(),
            "clients_left_out": self.experiment.clustering.left_out.tolist(),
            "model_bytes": self.experiment.model_bytes,
            "message_bytes": self.bytes,
            "cluster_frequencies": self.schedule.frequencies.tolist(),
            "max_staleness": max((max(event.staleness, default=0) for event in self.schedule.events), default=0),
            "train_loss_samples": self.samples,
            "max_updates_per_client_round": self.schedule.max_updates_per_client_round(),
        }
        if "cluster_clients" in rows[-1]:
            idle = [c for c, count in enumerate(rows[-1]["cluster_clients"]) if not count]
            summary["clusters_nobody_chooses"] = idle
        for name in ("h_device", "h_cluster"):
            if name in rows[-1]:
                summary[f"max_{name}"] = max(row[name] for row in rows)
        return summary


def warnings_of(experiment: Experiment) -> list[str]:
    """Return what the user should know of an experiment's clustering before it runs."""
    warnings, limit = [], experiment.settings.clustering.time_limit
    if len(left_out := experiment.clustering.left_out):
        warnings.append(f"clients that belong to no cluster and never train ({len(left_out)}): {_first(left_out)}")
    if experiment.settings.clustering.overshoot and experiment.has_network and limit is not None:
        over = np.flatnonzero(completion_of(experiment.networks[0], experiment.clustering.labels) > limit)
        if len(over):
            warnings.append(f"aggregators whose completion is above clustering.time_limit = {limit:g}: {_first(over)}")
    if experiment.needs("phases") and experiment.settings.method.pattern in ("decsyn", "decasy"):
        cut = [phase.round for phase in experiment.phases if cut_by_empty(phase.network, phase.clustering)]
        if cut:
            warnings.append(
                f"from round {cut[0]} on, aggregators without clients cut the others into parts that never "
                "exchange models; another clustering, or a topology with more links, would connect them"
            )
    return warnings


def _first(numbers: Ids) -> str:
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")


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
