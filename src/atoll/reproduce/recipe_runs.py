"""Running recipes: every unfinished run, several at a time, each into its own folder."""

import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import torch

from atoll.experiment.client_data import load_dataset
from atoll.experiment.experiment import Experiment
from atoll.report.reading.runs import listed_folders
from atoll.reproduce.kept_runs import PLANS, as_ran, keep, keep_plans, kept_file, seeds_in, unpack, unpack_plans
from atoll.reproduce.recipe_plans import make_plans, read_plans
from atoll.runs.run import run_events
from atoll.runs.run_folder import RunFolder
from atoll.runs.run_folders import begin_folders, name_folders, prepare_folders
from atoll.runs.titles import title_of, without_seed
from atoll.settings import experiment_file as config
from atoll.settings.validation import Settings
from atoll.support.errors import AtollError, InputError, NotFinite, RunError


@dataclass(frozen=True)
class RecipeTask:
    """One run of a recipe or, if nothing is trained, all its clusterings.

    Attributes:
        title: the run's name in messages.
        is_trained: whether it is a run.
        kept: the file that keeps the run as evidence; None: it is not kept.
    """

    recipe: str
    title: str
    folder: Path
    settings: tuple[Settings, ...]
    is_trained: bool = True
    kept: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """How a task ended.

    Attributes:
        problem: what went wrong, in one sentence; empty if it is finished.
        is_final: whether it would go wrong again.
        was_finished: whether there was nothing left to do.
        executor: which executor trained it, and why.
        note: why a finished run is not kept as evidence; empty if it is, or was not to be.
    """

    task: RecipeTask
    problem: str = ""
    was_finished: bool = False
    executor: str = ""
    note: str = ""
    is_final: bool = False


SEEDS = 3  # of each run by default


def settings_of(recipe: str, scale: str, seeds: int = SEEDS, device: str = "cpu") -> list[Settings]:
    """Return the settings of a recipe's runs at a scale, or unchanged if the recipe has no such scale.

    Each has the seeds 0 to `seeds` - 1, and all runs with one seed come before those with the next. A recipe that lists
    seeds itself keeps those and gets the missing ones. A run uses one core, since several runs go on at a time.
    """
    table = config.read_experiment(recipe)
    known = any(scale in layer.get("scales", {}) for layer in (table, *table.get("panels", ()), *table.get("runs", ())))
    made = config.make_runs(table, scale if known else None, ["run.workers=1", f"run.device={device}"])
    listed = {run["seed"] for run in table.get("runs", ()) if "seed" in run}
    kinds = {(each.panel, without_seed(each.label or each.name)): each for each in made}
    return (made if listed else []) + [
        settings.model_copy(update={"seed": seed, "label": f"{label}, seed {seed}"})
        for seed in sorted({*range(seeds)} - listed)
        for (_, label), settings in kinds.items()
    ]


def plan_tasks(
    recipe: str,
    scale: str,
    folder: Path,
    trained: bool,
    seeds: int = SEEDS,
    device: str = "cpu",
    evidence: Path | None = None,
) -> list[RecipeTask]:
    """Return all tasks of a recipe, finished or not; writes nothing.

    `evidence` is where runs are kept; of the seeds beyond `seeds` a run has those that are kept, or in the folder.
    """
    runs = settings_of(recipe, scale, seeds, device)
    if not trained:
        kept = None if evidence is None else evidence / recipe / scale / f"{PLANS}.gz"
        return [RecipeTask(recipe, f"{len(runs)} clusterings", folder, tuple(runs), False, kept)]
    held = max(seeds, seeds_in(folder, ""), 0 if evidence is None else seeds_in(evidence / recipe / scale))
    every = settings_of(recipe, scale, held, device)
    tasks = [
        RecipeTask(
            recipe,
            title_of(settings) or settings.name,
            folder / name,
            (settings,),
            kept=None if evidence is None else kept_file(evidence, recipe, scale, settings),
        )
        for settings, name in zip(every, name_folders(list(map(Experiment, every))), strict=True)
    ]
    more = (task for task in tasks[len(runs) :] if RunFolder(task.folder).is_run or (task.kept and task.kept.exists()))
    return [*tasks[: len(runs)], *more]


def restore(tasks: Sequence[RecipeTask]) -> dict[Path, str]:
    """Put kept runs into their tasks' folders, unless these hold the run; return which cannot be used, and why."""
    faults: dict[Path, str] = {}
    for task, folder in ((task, RunFolder(task.folder)) for task in tasks):
        try:
            if folder.is_run:
                folder.require_same(as_ran(task.settings[0], folder))
            elif task.kept and task.kept.exists() and task.is_trained:
                unpack(task.kept, task.folder, task.settings[0])
            elif task.kept and task.kept.exists():
                unpack_plans(task.kept, task.folder, len(read_plans(task.folder)["plans"]))
        except InputError as error:
            faults[task.folder] = str(error)
    for place in {task.folder.parent for task in tasks if task.is_trained}:  # what is new is read with the others
        names = [task.folder.name for task in tasks if task.folder.parent == place and RunFolder(task.folder).is_run]
        begin_folders(place, list(dict.fromkeys([*(each.name for each in listed_folders(place)[0]), *names])))
    return faults


def begin_tasks(tasks: Iterable[RecipeTask]) -> None:
    """Check that the tasks' folders can be used, and record which runs they hold."""
    by_folder: dict[Path, list[str]] = {}
    for task in (task for task in tasks if task.is_trained):
        by_folder.setdefault(task.folder.parent, []).append(task.folder.name)
    for folder, names in by_folder.items():
        prepare_folders(names, folder if len(names) > 1 else folder / names[0], resume=True, overwrite=False)
        begin_folders(folder, names)


def find_missing(tasks: Iterable[RecipeTask]) -> dict[str, str]:
    """Return the data sets of unfinished tasks that cannot be loaded or downloaded, each with the reason."""
    missing = {}
    left = [task for task in tasks if not RunFolder(task.folder).is_finished]
    for settings in {task.settings[0].data.dataset: task.settings[0] for task in left}.values():
        try:
            load_dataset(settings)
        except AtollError as error:
            missing[settings.data.dataset] = str(error)
    return missing


def carry_out_all(tasks: Iterable[RecipeTask], jobs: int) -> Iterator[Outcome]:
    """Carry out tasks, `jobs` at a time, each in its own process; yield their outcomes as they come.

    With one job they run in this process. An interrupt stops them, with checkpoints, and is raised again. If this
    process is killed, the others end with it.
    """
    if jobs == 1:
        yield from map(carry_out_task, tasks)
        return
    # Spawned, since a fork would copy the locks that this process's threads hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_begin_process) as pool:
        outcomes = [pool.submit(_carry_out_here, task) for task in tasks]
        try:
            yield from (each.result() for each in as_completed(outcomes))
        except BrokenProcessPool as error:
            raise RunError(
                "the process of a run was killed, as happens when memory runs out; lower --jobs and give the same "
                "command again"
            ) from error
        except BaseException:
            for process in list((pool._processes or {}).values()):  # Python 3.11 has no public way to them
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _begin_process() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process is told as well, and passes it on
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End once the process that started this one has ended, so that the run's folder is free for whoever resumes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _carry_out_here(task: RecipeTask) -> Outcome:
    """Carry out one task in a process of its own, which a signal ends, after a checkpoint if a run is under way."""
    signal.signal(signal.SIGTERM, _interrupt_once)
    try:
        return carry_out_task(task)
    except KeyboardInterrupt:
        os._exit(1)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is lost, and nothing to be said


def _interrupt_once(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # another one, as the pool sends, would cut the checkpoint short
    raise KeyboardInterrupt


def carry_out_task(task: RecipeTask) -> Outcome:
    """Carry out one task, unless it is finished; errors are returned, but interrupts raised."""
    try:
        return _train(task) if task.is_trained else _cluster_all(task)
    except AtollError as error:
        return Outcome(task, f"{task.recipe}, {task.title}: {error}", is_final=isinstance(error, NotFinite))


def _train(task: RecipeTask) -> Outcome:
    """Train a run to its end, unless it is already finished."""
    (settings,) = task.settings
    folder = RunFolder(task.folder)
    if folder.is_run and folder.is_finished:
        folder.take_over(as_ran(settings, folder))
        return Outcome(task, was_finished=True, note=_keep(task))
    experiment = Experiment(settings)
    for _ in run_events(experiment, task.folder, resume=folder.is_run):
        pass
    told = f"run.executor = {settings.run.executor!r}: {experiment.execution.choice}"
    return Outcome(task, executor=told, note=_keep(task))


def _keep(task: RecipeTask) -> str:
    """Keep a finished run as evidence unless it is already; return why it cannot be."""
    return "" if task.kept is None or task.kept.exists() else keep(task.kept, task.folder, task.settings[0])


def _cluster_all(task: RecipeTask) -> Outcome:
    """Make the missing clusterings, and keep them all; one that is impossible leaves the others."""
    was_finished, problem = make_plans(task.folder, task.settings)
    note = "" if task.kept is None or (was_finished and task.kept.exists()) else keep_plans(task.kept, task.folder)
    return Outcome(task, problem and f"{task.recipe}, {problem}", was_finished, note=note)
