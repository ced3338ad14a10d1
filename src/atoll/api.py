"""Whole runs in one call, bit-identical to `atoll run`."""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.experiment.executor_choice import require_no_fleet
from atoll.experiment.experiment import Experiment
from atoll.runs.probes import check_probes
from atoll.runs.result import Result, read_result
from atoll.runs.run import RunProgress, run_events
from atoll.runs.run_folders import begin_folders, name_folders, prepare_folders
from atoll.runs.stopping import OnRow
from atoll.runs.titles import choose_runs, require_one_run, title_of
from atoll.settings.experiment_file import make_runs, read_experiment, resolved
from atoll.settings.given_objects import named
from atoll.settings.plugins import import_from
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, reading
from atoll.support.requiring import require_has, require_path
from atoll.support.wording import nearest
from atoll.trackers import require_trackers, tracked

_TITLE = 30  # characters of a progress bar's title, so that all of it fits into 80 columns

Source = str | Path | Mapping[str, Any] | Settings | Experiment
"""A recipe's name, a ``.toml`` file's path or its contents as a table, settings or an experiment."""

_PARAMETERS = ("experiment", "out", "scale", "only", "resume", "overwrite", "progress")

_DEFAULTS: Mapping[str, Any] = {}


def run(
    experiment: Source = _DEFAULTS,
    out: Path | str | None = None,
    *,
    scale: str | None = None,
    only: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    on_row: OnRow | None = None,
    **settings: Any,
) -> Result:
    """Execute one run to its end.

    >>> run("quickstart", only="FedAvg", rounds=1, data={"clients": 20}).history["round"]
    array([0., 1.])

    Args:
        experiment: a recipe's name, the path of a ``.toml`` file, such a file's table, `Settings` or an `Experiment`;
            by default, all settings have their defaults.
        out: the run's folder; None: a temporary one, deleted afterwards.
        scale: one of the file's scales, such as ``"small"``.
        only: of several runs, the one with this text in its panel or label.
        resume: continue from the last checkpoint in `out`, if there is one; a finished run is only read.
        overwrite: replace the run in `out`.
        progress: whether to show a progress bar, in a terminal or a notebook; otherwise nothing is printed.
        on_row: called with each new row of metrics (a dict, as in ``metrics.jsonl``) once it is written; if it returns
            something true after training has begun, the run ends there, as finished (``result.summary["stopped"]``).
        settings: overrides, such as ``rounds=5`` or ``local={"lr": 0.1}``; your own functions and data sets can be
            passed directly, such as ``clustering=function``, ``model=function`` or ``data=dataset``.

    Raises:
        InputError: if settings are bad, a folder cannot be used, or the experiment has several runs (see `run_all`).
        RunError: if training diverged to non-finite numbers, or the disk failed.
    """
    if on_row is not None:
        require_has("on_row", on_row, "__call__", "a function")
    experiments = _experiments(experiment, scale, only, settings)
    settings_of_all = [each.settings for each in experiments]
    require_one_run("atoll.run", settings_of_all, "choose one with only=..., or call atoll.run_all")
    (result,) = _run_each(experiments, out, resume, overwrite, progress, on_row).values()
    return result


def run_all(
    experiment: Source = _DEFAULTS,
    out: Path | str | None = None,
    *,
    scale: str | None = None,
    only: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    **settings: Any,
) -> dict[str, Result]:
    """Execute all runs of an experiment in turn; return their results by panel and label.

    Each run has its own folder in `out`. All else is as for `run`.
    """
    return _run_each(_experiments(experiment, scale, only, settings), out, resume, overwrite, progress)


def _experiments(source: Source, scale: str | None, only: str | None, settings: Mapping[str, Any]) -> list[Experiment]:
    """Return the runs of an experiment, with these settings overridden."""
    for key in settings:
        if key not in Settings.model_fields and (meant := nearest(key, _PARAMETERS, cutoff=0.7)):
            raise InputError(f"{key}: unknown, did you mean {meant!r}?")
    if isinstance(source, Experiment):
        if settings or scale or only:
            raise InputError("an Experiment is run unchanged; to change settings, pass its `settings` instead")
        return [source]
    if not isinstance(source, str | Path | Mapping | Settings):
        raise InputError(
            "experiment: must be a recipe's name, a .toml file, a table of settings, Settings or an Experiment, not "
            f"{type(source).__name__!r}"
        )
    if isinstance(source, str | Path):
        import_from(Path(source).parent)
        source = read_experiment(source)
    table = resolved(source) if isinstance(source, Settings) else named(source)
    return [Experiment(each) for each in choose_runs(make_runs(table, scale, named(settings)), only)]


def check_runs(runs: Sequence[Experiment], trained: bool = True, schedules: bool = True) -> None:
    """Check runs, and that they can be `trained` without a fleet, before anything is made or written.

    If `schedules` is False, all is checked but their schedules.
    """
    for each in runs:
        title = title_of(each.settings) if len(runs) > 1 else ""
        with reading(f"run {title!r}") if title else nullcontext():
            if trained:
                require_no_fleet(each.settings.run)
            each.check() if schedules else each.check_parts()
            check_probes(each)
            require_trackers(each.settings)


def _run_each(
    experiments: list[Experiment],
    out: Path | str | None,
    resume: bool,
    overwrite: bool,
    progress: bool,
    on_row: OnRow | None = None,
) -> dict[str, Result]:
    if resume and (out is None or overwrite):
        raise InputError("resume=True: needs the run's folder in `out`, and cannot be combined with overwrite=True")
    check_runs(experiments)
    if out is None and any(each.settings.run.trackers for each in experiments):
        raise InputError("run.trackers: need the run's folder; set `out`")
    names = name_folders(experiments)
    titles = [title_of(each.settings) or each.settings.name for each in experiments]
    titles = titles if len({*titles}) == len(titles) else [*names]  # a label may be the experiment's name
    with _folder(out) as parent:
        folders = prepare_folders(names, parent, resume, overwrite)
        begin_folders(parent, names)
        runs = zip(experiments, folders, titles, strict=True)
        is_hidden = not progress or len(names) == 1  # above each run's own bar
        with _tqdm()(runs, "all runs", len(names), unit=" runs", dynamic_ncols=True, disable=is_hidden) as bar:
            results = [
                _run_one(each, place, resume, overwrite, title if progress else None, on_row)
                for each, place, title in bar
            ]
    return dict(zip(titles, [result if out else replace(result, folder=None) for result in results], strict=True))


def _run_one(
    experiment: Experiment, place: Path, resume: bool, overwrite: bool, title: str | None, on_row: OnRow | None
) -> Result:
    """Execute a run, under a progress bar with this title; None: nothing is shown."""
    told = list[str]()
    live = tracked(run_events(experiment, place, resume, overwrite, on_row=on_row), experiment.settings, place, resume)
    with closing(live) as steps, _bar(title) as show:
        for step in steps:
            told += step.warnings
            show(step)
    return read_result(place, told)


@contextmanager
def _folder(out: Path | str | None) -> Iterator[Path]:
    """Yield the given folder, or a temporary one."""
    if out is not None:
        yield require_path("out", out)
        return
    with tempfile.TemporaryDirectory(prefix="atoll-") as place:
        yield Path(place)


def _tqdm() -> Any:
    """Return tqdm's bar for this environment, without its warning in notebooks that lack widgets."""
    with warnings.catch_warnings(action="ignore"):
        from tqdm.auto import tqdm
    return tqdm


@contextmanager
def _bar(title: str | None) -> Iterator[Callable[[RunProgress], None]]:
    """Yield a function that shows a run's progress, if it has a title, on standard error or in a notebook's cell."""
    short = title if title is None or len(title) <= _TITLE else f"{title[: _TITLE - 3]}..."
    with _tqdm()(desc=short, unit=" events", dynamic_ncols=True, disable=title is None) as bar:

        def show(step: RunProgress) -> None:
            bar.total = step.events
            if step.row:
                accuracy = step.row.get("test_accuracy")
                told = "" if accuracy is None else f", accuracy {accuracy:.3f}"
                bar.set_postfix_str(f"loss {step.row['train_loss']:.4f}{told}", refresh=False)
            bar.update(step.events_done - bar.n)

        yield show
        bar.refresh()
