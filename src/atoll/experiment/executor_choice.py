"""From settings to the executor that trains a run's cohorts."""

import multiprocessing
import os
import sys
from dataclasses import dataclass, replace
from typing import Literal

import torch

from atoll.aggregation.mean import is_weighted_mean
from atoll.engine.cohorts import ClientTrainer, Executor
from atoll.engine.method import Method
from atoll.engine.stages import Need
from atoll.executors.cores.cores_executor import Cores, why_no_room
from atoll.executors.cost import Units, time_unit
from atoll.executors.distributed import why_single
from atoll.executors.ray.ray_executor import Ray
from atoll.executors.serial import Serial
from atoll.executors.stacked.fit import mixes_samples, try_stack
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.executors.weighted import Weighted, why_not_weighted
from atoll.local.models import Model
from atoll.local.precision import lacks_bfloat16, why_card_lacks
from atoll.local.trainer import plain_of
from atoll.local.weights import require_devices
from atoll.settings.sections import RunSettings
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.process import keep_freed_memory

_WORTH_IT = 0.8  # of the time without workers; on a busy machine, a smaller gain may vanish


@dataclass(frozen=True)
class ExecutorChoice:
    """The executor of a run, and why it was chosen.

    Attributes:
        why: the reason, for the user.
        whole: whether a cohort is one weighted pass, also in the workers of `cores` and `ray`.
        workers: number of processes of `cores` and `ray`; 0: one for each of the cluster's cores, or GPUs.
        warning: a warning for the user, or empty.
    """

    name: Literal["serial", "cores", "ray", "stacked", "weighted", "fleet"]
    why: str
    whole: bool = False
    workers: int = 1
    warning: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


def choose_executor(
    wanted: RunSettings, method: Method, trainer: ClientTrainer, start: Model, sent_bytes: int, device: str
) -> ExecutorChoice:
    """Return the executor of a run: the one that the settings name, or for `auto` one by this rule.

    Whatever affects bits depends on the settings alone, so that a resumed run stays bit-identical:

    - on a GPU the first of `stacked`, `weighted` and `serial` whose result is that of training client by client;
    - on the CPU a cohort is one weighted pass if that is equivalent, and is otherwise trained client by client.

    On the CPU `cores` does either in parallel, bit-identically. It is chosen if it is expected to need at most 80 % of
    the time, as `Units.predict` estimates from the time that one unit of work takes here and now, from the model
    `start`. A communicated model has at most `sent_bytes`.
    """
    if wanted.precision == "tf32" and device == "cpu":
        raise InputError("run.precision = 'tf32': needs run.device = 'cuda'; on the CPU use 'float32' or 'bfloat16'")
    for each in (device, *wanted.device.split(",")[1:]):
        if lacking := why_card_lacks(wanted.precision, each.strip()):
            raise InputError(f"run.precision = {wanted.precision!r}: {lacking}")
    if wanted.debug:
        if wanted.executor not in ("auto", "serial"):
            raise InputError(
                f"run.debug = true: clients are trained one after the other in this process, which "
                f"run.executor = {wanted.executor!r} does not; use 'serial' or 'auto'"
            )
        return ExecutorChoice("serial", "run.debug = true")
    if wanted.executor != "auto":
        choice = _take_wanted(wanted, method, trainer, device)
    elif device != "cpu":
        choice = _choose_on_gpu(method, trainer)
    else:
        choice = _choose_on_cpu(wanted, method, trainer, start, sent_bytes)
    if choice.name in ("cores", "ray") and (reason := _why_single(method, trainer)):
        choice = replace(choice, why=f"{choice.why}; each client's model comes to this process, since {reason}")
    if "," in wanted.device and choice.name != "stacked":
        raise InputError(f"run.device = {wanted.device!r}: needs run.executor = 'stacked'; this run has {choice}")
    if wanted.cuda_graphs is True and choice.name != "stacked":
        raise InputError(f"run.cuda_graphs = true: needs run.executor = 'stacked' on a GPU; this run has {choice}")
    if wanted.precision == "bfloat16" and device == "cpu" and lacks_bfloat16():
        emulated = "run.precision = 'bfloat16': slower than float32, as this processor has no bfloat16 arithmetic"
        return replace(choice, warning="; ".join(filter(None, (choice.warning, emulated))))
    return choice


def _why_single(method: Method, trainer: ClientTrainer) -> str:
    """Return why workers cannot send sums of models; empty if they can."""
    stages = (stage.told for stage in reversed(method.stages) if stage.combine)
    return why_single(method.combined_by, method.screening, trainer.keeps_state, next(stages, method.told(Need.MEAN)))


def make_executor(choice: ExecutorChoice, wanted: RunSettings, trainer: ClientTrainer, sent_bytes: int) -> Executor:
    """Return the chosen executor; close it when the run is over. From now on this process keeps freed memory."""
    require_no_fleet(wanted)
    keep_freed_memory()
    plain = plain_of(trainer)
    by_cohort = Weighted(plain) if choice.whole and plain else None
    if choice.name == "ray":
        return Ray(trainer, choice.workers or None, wanted.address, choice.whole, wanted.device != "cpu")
    if choice.name == "cores":
        return Cores(trainer, choice.workers, sent_bytes, by_cohort)
    if choice.name == "stacked" and plain:
        return Stacked(plain, wanted.stack_bytes, wanted.cuda_graphs, require_devices(wanted.device)[1:])
    return by_cohort or Serial(trainer, wanted.debug)


def require_no_fleet(wanted: RunSettings) -> None:
    """Reject the executor that needs a fleet."""
    if wanted.executor == "fleet":
        raise InputError(
            "run.executor = 'fleet': needs a fleet; use `atoll fleet up` (all on this machine) or "
            "`atoll fleet server`, or set run.executor = 'auto'"
        )


def require_states_apart(method: Method) -> None:
    """Reject a method on a fleet if it needs client states or data outside the clients' nodes.

    Server rules and combine rules see only models; the rule that finds clusters (`Method.regroup`) sees client states.
    """
    if method.labels is not None:
        raise InputError(
            "run.executor = 'fleet': the method's clusters are learned from clients' data or updates, which nodes "
            "keep to themselves; use 'serial', 'cores', 'ray' or 'auto'"
        )


def require_measuring(settings: Settings) -> None:
    """Reject reclustering by measurements if nothing is measured."""
    if settings.fleet.recluster_every is not None and settings.run.executor != "fleet":
        raise InputError(
            f"fleet.recluster_every = {settings.fleet.recluster_every}: needs run.executor = 'fleet', where clients "
            "are measured; in simulation use network.recluster_every, for clients that move"
        )


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _take_wanted(wanted: RunSettings, method: Method, trainer: ClientTrainer, device: str) -> ExecutorChoice:
    """Return the executor that the settings name, if its result is that of training client by client."""
    why = "as run.executor says"
    if wanted.executor == "fleet":
        require_states_apart(method)
        return ExecutorChoice("fleet", why)
    if wanted.executor == "stacked" and (reason := _why_not_stacked(trainer)):
        raise InputError(f"run.executor = 'stacked': {reason}; use 'serial' or 'auto'")
    if wanted.executor in ("stacked", "serial"):
        return ExecutorChoice(wanted.executor, why)
    reason = _why_not_weighted(method, trainer)
    if wanted.executor in ("cores", "ray"):
        if device != "cpu" and (wanted.executor, device) != ("ray", "cuda"):
            how = "trains on the CPU" if wanted.executor == "cores" else "chooses workers' GPUs: 'cpu' or 'cuda'"
            raise InputError(f"run.executor = {wanted.executor!r}: {how}, but run.device = {wanted.device!r}")
        if wanted.executor == "ray" and wanted.address is not None:
            return ExecutorChoice("ray", why, not reason, wanted.workers or 0)
        return _with_workers(wanted.executor, why, not reason, wanted)
    if reason:
        raise InputError(f"run.executor = 'weighted': {reason}; use 'serial' or 'auto'")
    return ExecutorChoice("weighted", why, whole=True)


def _with_workers(name: Literal["cores", "ray"], why: str, whole: bool, wanted: RunSettings) -> ExecutorChoice:
    cores = count_cores()
    workers = wanted.workers or (cores if wanted.device == "cpu" else torch.cuda.device_count())
    many = f"run.workers = {workers}: this process may use {cores} cores; more workers are no faster"
    return ExecutorChoice(name, why, whole, workers, many if workers > cores else "")


def _choose_on_gpu(method: Method, trainer: ClientTrainer) -> ExecutorChoice:
    if not (reason := _why_not_stacked(trainer)):
        return ExecutorChoice("stacked", "many clients in a batch keep a GPU busy")
    if not _why_not_weighted(method, trainer):
        return ExecutorChoice("weighted", f"a cohort is one step of SGD; not stacked: {reason}", whole=True)
    return ExecutorChoice("serial", f"not stacked: {reason}; with run.executor = 'ray' several clients share a GPU")


def _choose_on_cpu(
    wanted: RunSettings, method: Method, trainer: ClientTrainer, start: Model, sent_bytes: int
) -> ExecutorChoice:
    """Return `cores` if it is expected to be faster, otherwise an executor that does its workers' work here."""
    whole = not _why_not_weighted(method, trainer)
    how = "a cohort is one step of SGD" if whole else "client by client"
    workers = min(wanted.workers or count_cores(), count_cores())
    plain = plain_of(trainer)
    executor = Weighted(plain) if whole and plain else Serial(trainer)
    units = Units(method.schedule, whole, whole and executor.carries_through(method.combined_by))
    reason = why_not_fork() or _why_not_side_by_side(units, workers) or why_no_room(workers, sent_bytes)
    if not reason:
        seconds = time_unit(executor, units.first(start))
        before, after = units.predict(seconds, sent_bytes, workers)
        expected = (
            f"a {units.name} takes {1000 * seconds:.3g} ms, all {before:.3g} s, {after:.3g} s with {workers} workers"
        )
        if after <= _WORTH_IT * before:
            return ExecutorChoice("cores", f"{how}; {expected}", whole, workers)
        reason = expected
    return ExecutorChoice("weighted" if whole else "serial", f"{how}; without workers, because {reason}", whole)


def _why_not_side_by_side(units: Units, workers: int) -> str:
    """Return why no units can be trained in parallel; empty if some can."""
    if workers == 1:
        return "there is one core for them"
    return f"one {units.name} trains at a time" if units.at_a_time < 2 else ""


def why_not_fork() -> str:
    """Return why this process should not fork workers unless told to; empty if it may."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this platform cannot fork processes"
    if sys.platform == "darwin":
        return "macOS's own libraries may fail in forked processes"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "this process uses CUDA, which does not survive a fork"
    return ""


def _why_not_stacked(trainer: ClientTrainer) -> str:
    plain = plain_of(trainer)
    return try_stack(plain).reason if plain else trainer.why_one_by_one


def _why_not_weighted(method: Method, trainer: ClientTrainer) -> str:
    plain = plain_of(trainer)
    if not plain:
        return trainer.why_one_by_one
    if method.screening or not is_weighted_mean(method.combined_by):
        return "the method's combine rule must be the mean of models"
    mixed = "the model draws at random, changes a buffer, or its output for a sample depends on the rest of the batch"
    return why_not_weighted(plain.rule, plain.module) or (mixed if mixes_samples(plain) else "")
