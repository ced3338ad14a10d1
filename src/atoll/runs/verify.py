"""Check reproducibility on this machine: bit-identical where promised, up to rounding elsewhere."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from atoll.experiment.executor_choice import count_cores
from atoll.experiment.experiment import Experiment
from atoll.local.models import Model
from atoll.runs.going_on import changed_data
from atoll.runs.run import run_events
from atoll.runs.run_files import HAPPENED
from atoll.runs.run_folder import Row, RunFolder
from atoll.runs.saved import SavedRun, read_saved
from atoll.settings.experiment_file import make_runs, overlay
from atoll.support.errors import InputError
from atoll.support.wording import counted

TOLERANCE = 1e-5
"""Largest difference by rounding, relative to the largest number of the tensor."""

EXPERIMENT: dict[str, Any] = {
    "rounds": 3,
    "data": {"clients": 12, "samples": 20, "partition": "dirichlet", "alpha": 1.0},
    "local": {"steps": 3, "batch_size": 5},
    "clustering": {"clusters": 3},
    "run": {"executor": "serial", "checkpoint_every": 1},
}
CYCLING = {"method": {"fraction": 0.5}}
ASYNCHRONOUS = {"rounds": 6, "method": {"name": "hierarchical", "pattern": "cenasy", "intra_rounds": 2}}
ONE_STEP = {"local": {"steps": 1}}


@dataclass(frozen=True)
class Check:
    """One comparison with the serial, uninterrupted run.

    Attributes:
        what: how the run was executed.
        must: ``bits`` if all numbers must be equal, ``rounding`` if they may differ by `TOLERANCE`.
        difference: the largest between the models, relative to the largest number of the tensor.
        rows_equal: whether the rows of metrics are equal except for wall-clock time.
        first_difference: of `verify_run`, in words; empty if there is none.
    """

    what: str
    must: str
    difference: float
    rows_equal: bool
    first_difference: str = ""

    @property
    def holds(self) -> bool:
        """Whether the run repeats as it must."""
        return self.difference <= TOLERANCE if self.must == "rounding" else self.difference == 0 and self.rows_equal


def verify(folder: Path) -> Iterator[Check]:
    """Run tiny experiments in several ways, in an empty folder, and yield each comparison.

    Uses scikit-learn's digits, and takes some seconds. Results are bit-identical as documented (``determinism.md``):
    repeated, with any number of workers, interrupted after each event, and replayed.
    """
    for name, change in (("fedcluster", CYCLING), ("cenasy", ASYNCHRONOUS)):
        base = overlay(EXPERIMENT, change)
        whole = _run(base, folder / name / "whole")
        yield _compare(f"{name}: once more", "bits", whole, _run(base, folder / name / "again"))
        replayed = _run(base, folder / name / "replayed", whole.path / "schedule.npz")
        yield _compare(f"{name}: replayed by the schedule that it wrote", "bits", whole, replayed)
        for workers in sorted({1, 2, count_cores()}):
            cores = overlay(base, {"run": {"executor": "cores", "workers": workers}})
            parallel = _run(cores, folder / name / f"cores-{workers}")
            yield _compare(f"{name}: cores, {counted(workers, 'worker')}", "bits", whole, parallel)
        stopped = _run_in_parts(base, folder / name / "stopped")
        yield _compare(f"{name}: stopped and resumed after each event", "bits", whole, stopped)
        stacked = _run(overlay(base, {"run": {"executor": "stacked"}}), folder / name / "stacked")
        yield _compare(f"{name}: stacked", "rounding", whole, stacked)
        base = overlay(base, ONE_STEP)
        whole = _run(base, folder / name / "one-step")
        weighted = _run(overlay(base, {"run": {"executor": "weighted"}}), folder / name / "weighted")
        yield _compare(f"{name}, one local step: weighted", "rounding", whole, weighted)


def verify_run(run: Path | str, place: Path) -> Check:
    """Carry out a run's events once more, here and in an empty folder, and compare the rows and models.

    The events are those that happened, whatever `run.stop_at` says: a run on a fleet is replayed in simulation, an
    unfinished one compared up to its last checkpoint. Only rows and columns that both runs have are compared.

    Raises:
        InputError: its data has changed, or it is a private run on a fleet, whose noise nobody can draw again.
    """
    saved = read_saved(run)
    folder, done = RunFolder(saved.folder), saved.state.events_done
    private, live = saved.settings.privacy.trust != "none", folder.happened.exists()
    if private and live:
        raise InputError(f"{run}: cannot be carried out again, since its noise for privacy came from the system")
    if told := changed_data(folder, saved.settings):
        raise InputError(f"{told}; put back what was there to run its events again")
    events = None if private else folder.happened if live else folder.schedule
    if live and not saved.is_finished:  # more may have happened since: it would train together with these
        events = place.with_name(f"{place.name}-{HAPPENED}")
        events.write_bytes(b"".join(folder.happened.read_bytes().splitlines(keepends=True)[: done + 1]))
    experiment = replace(saved, settings=saved.settings.but("run", stop_at=None)).experiment()
    with closing(run_events(experiment, place, schedule=events)) as steps:
        for progress in steps:
            if progress.events_done >= done and progress.is_settled:
                break
    again = {row["event"]: row for row in _timeless(RunFolder(place))}
    pairs = [(row, again[row["event"]]) for row in _timeless(folder) if row["event"] in again]
    in_rows = next(filter(None, (_difference_of_rows(*pair) for pair in pairs)), "")
    apart = _apart(saved, read_saved(place))
    in_models = f"after event {done}, a model's numbers: {apart:.1e} apart, relative to the largest"
    first = in_rows or in_models * (apart > 0)
    what = f"{run}: {counted(done, 'event')} and {counted(len(pairs), 'row')}, run again"
    return Check(what, "bits", apart, not in_rows, first)


def _difference_of_rows(first: Row, second: Row) -> str:
    """Return the first difference in columns that both rows have, in words; empty without one."""
    for name in first:
        if name in second and name != "crc32" and first[name] != second[name]:
            return f"after event {first['event']}, {name}: {first[name]} in the run, {second[name]} when run again"
    return ""


def _models(saved: SavedRun) -> list[Model]:
    """Return the models that any side can have: not clients' states, which stay at nodes."""
    return [*saved.state.starts, *saved.state.published, *filter(None, [saved.state.server])]


def _run(table: dict[str, Any], folder: Path, schedule: Path | None = None) -> RunFolder:
    for _ in run_events(Experiment(make_runs(table)[0]), folder, schedule=schedule):
        pass
    return RunFolder(folder)


def _run_in_parts(table: dict[str, Any], folder: Path) -> RunFolder:
    """Run one event at a time, resuming from the checkpoint each time."""
    run = RunFolder(folder)
    while not run.is_finished:
        steps = run_events(Experiment(make_runs(table)[0]), folder, resume=True)
        began = next(steps).events_done
        for progress in steps:
            if progress.events_done > began and progress.is_settled and progress.events_done < progress.events:
                break
        steps.close()
    return run


def _compare(what: str, must: str, whole: RunFolder, other: RunFolder) -> Check:
    return Check(what, must, _apart(*map(read_saved, (whole.path, other.path))), _timeless(whole) == _timeless(other))


def _apart(one: SavedRun, other: SavedRun) -> float:
    """Return the largest difference between the models of two runs' last checkpoints."""
    pairs = list(zip(_models(one), _models(other), strict=True))
    return max(_difference(first[name], second[name]) for first, second in pairs for name in first)


def _difference(first: torch.Tensor, second: torch.Tensor) -> float:
    if torch.equal(first, second):
        return 0.0
    apart = (first.double() - second.double()).abs().max()
    return float(apart / first.double().abs().max().clamp(min=torch.finfo(torch.float32).tiny))


def _timeless(folder: RunFolder) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "wall_time"} for row in folder.rows()]
