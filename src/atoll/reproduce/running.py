"""Running recipes: every run that is not finished yet, several at a time, each into its own folder."""

import json
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from atoll.experiment import file as config
from atoll.experiment.clients import load_dataset
from atoll.experiment.experiment import Experiment
from atoll.experiment.settings import Settings
from atoll.reproduce.claims import Paper, needs_training
from atoll.runs.folder import RunFolder, begin_folders, prepare_folders
from atoll.runs.run import name_folders, run_events
from atoll.support.errors import AtollError, InputError
from atoll.support.files import to_json, write_atomically

PLANS = "clusters.json"
"""What a recipe that is not trained leaves in its folder: the clustering of each of its runs."""


@dataclass(frozen=True)
class Task:
    """One run of a recipe or, where nothing is trained, all its clusterings.

    Attributes:
        recipe: the recipe's name.
        title: what the run is called.
        folder: where it goes.
        settings: of the run, or of all of them.
        is_trained: whether it is a run.
    """

    recipe: str
    title: str
    folder: Path
    settings: tuple[Settings, ...]
    is_trained: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        task: the task.
        problem: what went wrong, in one sentence; empty when it is finished.
        was_finished: whether there was nothing left to do.
    """

    task: Task
    problem: str = ""
    was_finished: bool = False


def settings_of(recipe: str, scale: str) -> list[Settings]:
    """Return the settings of a recipe's runs at a scale, or as they stand where the recipe has no such scale.

    A run may use one core: what runs side by side here are runs.
    """
    table = config.read_experiment(recipe)
    layers = (table, *table.get("panels", ()), *table.get("runs", ()))
    known = any(scale in layer.get("scales", {}) for layer in layers)
    return config.make_runs(table, scale if known else None, ["run.workers=1"])


def is_trained(recipe: str, papers: Sequence[Paper]) -> bool:
    """Return whether a recipe's claims need its runs trained, and not only its clusterings made."""
    return needs_training([claim for paper in papers for claim in paper.claims if claim.recipe == recipe])


def plan_tasks(recipe: str, scale: str, folder: Path, trained: bool, resume: bool) -> list[Task]:
    """Return what there is to do for a recipe, having seen that its folders can be used.

    Raises:
        InputError: a folder that holds runs already, without `resume`, or something else.
    """
    runs = settings_of(recipe, scale)
    if not trained:
        if (folder / PLANS).exists() and not resume:
            raise InputError(f"{folder} holds clusterings already; add --resume to keep what is finished")
        return [Task(recipe, f"{len(runs)} clusterings", folder, tuple(runs), False)]
    names = name_folders([Experiment(settings) for settings in runs])
    folders = prepare_folders(names, folder, resume, overwrite=False)
    begin_folders(folder, names)
    return [
        Task(recipe, ", ".join(filter(None, (s.panel, s.label))) or s.name, place, (s,))
        for s, place in zip(runs, folders, strict=True)
    ]


def find_missing(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the data sets of tasks that cannot be had, downloads included, each with the reason in one sentence."""
    missing = {}
    for settings in {task.settings[0].data.dataset: task.settings[0] for task in tasks}.values():
        try:
            load_dataset(settings)
        except AtollError as error:
            missing[settings.data.dataset] = str(error)
    return missing


def carry_out_all(tasks: Sequence[Task], jobs: int) -> Iterator[Outcome]:
    """Carry tasks out, `jobs` at a time, each in a process of its own; yield each one's outcome as it comes.

    With one job they run here. An interrupt stops what runs, which keeps checkpoints, and is raised again.
    """
    if jobs == 1:
        yield from map(carry_out_task, tasks)
        return
    # Spawned, since a fork would take over the threads' locks of whatever this process computes.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: set[Future[Outcome]] = {pool.submit(carry_out_task, task) for task in tasks}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def carry_out_task(task: Task) -> Outcome:
    """Do one task, unless it is finished; errors are returned, not raised.

    Raises:
        KeyboardInterrupt: also for tasks that a process still has in its queue after an interrupt.
    """
    if _interrupted:
        raise KeyboardInterrupt
    try:
        return Outcome(task, was_finished=_train(task) if task.is_trained else _cluster(task))
    except AtollError as error:
        return Outcome(task, f"{task.recipe}, {task.title}: {error}")
    except KeyboardInterrupt:
        _interrupted.append(True)
        raise


_interrupted: list[bool] = []


def _train(task: Task) -> bool:
    """Train a run to its end; return whether it was there already."""
    (settings,) = task.settings
    folder = RunFolder(task.folder)
    if folder.is_run and folder.is_finished:
        folder.take_over(settings)
        return True
    for _ in run_events(Experiment(settings), task.folder, resume=folder.is_run):
        pass
    return False


def _cluster(task: Task) -> bool:
    """Make all clusterings; return whether they were there already."""
    file = task.folder / PLANS
    asked = [settings.model_dump(mode="json") for settings in task.settings]
    if file.exists() and json.loads(file.read_bytes())["settings"] == asked:
        return True
    plans = []
    for settings in task.settings:
        plan = Experiment(settings).plan
        plans.append({"label": settings.label, "panel": settings.panel, **asdict(plan)})
    task.folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, to_json({"settings": asked, "plans": plans}))
    return False
