"""From settings to the executor that trains a run's cohorts."""

import multiprocessing
import os
import sys
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from atoll.aggregation.mean import is_weighted_mean
from atoll.engine.cohorts import ClientTrainer, Executor
from atoll.engine.engine import Method
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.cost import Units, time_unit
from atoll.executors.ray.ray_executor import Ray
from atoll.executors.serial import Serial
from atoll.executors.stacked.fit import why_not_stacked
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.executors.weighted import Weighted, why_not_weighted
from atoll.local.models import Model
from atoll.local.precision import has_bfloat16, lacks_bfloat16, slowness_of_bfloat16
from atoll.local.rounded import Rounded
from atoll.local.trainer import plain_of
from atoll.methods.parts.rule_requirements import refuse_epochs
from atoll.settings.sections import RunSettings
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.process import keep_freed_memory

_WORTH_IT = 0.8  # of the time without workers; a smaller gain may be none on a machine that does something else too


@dataclass(frozen=True)
class ExecutorChoice:
    """Which executor trains a run, and why.

    Attributes:
        name: the executor.
        why: the reason, for the user.
        whole: whether a cohort is one weighted pass, also in the workers of `cores` and `ray`.
        workers: processes of `cores` and `ray`; 0 for as many as a cluster has cores.
        warning: what the user should know, or an empty text.
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
    """Return which executor trains a run: the one that the settings name, or for `auto` one by this rule.

    What changes bits depends on the settings alone, so that a run goes on with the bits that it began with:

    - on a GPU `stacked`, else `weighted`, else `serial`, the first that gives what training client by client gives;
    - on the CPU a cohort is one weighted pass where that fits, and is trained client by client elsewhere.

    On the CPU `cores` does either on several cores to the same bits. It is taken where it is expected to need at most
    80 % of the time: `Units.predict` says how, from the time that one unit of work takes here and now.

    Args:
        wanted: the section of the settings.
        method: what the executor is for.
        trainer: trains one client.
        start: a model to time the training of.
        sent_bytes: the most bytes of a model that is sent, with the moments that travel with it.
        device: where training takes place.

    Raises:
        InputError: an executor that would not give what training client by client gives, and why.
    """
    if wanted.precision == "tf32" and device == "cpu":
        raise InputError("run.precision = 'tf32': is for run.device = 'cuda'; on the CPU use 'float32' or 'bfloat16'")
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
    if wanted.cuda_graphs and choice.name != "stacked":
        raise InputError(f"run.cuda_graphs = true: is for run.executor = 'stacked' on a GPU; this run has {choice}")
    if wanted.precision == "bfloat16" and device == "cpu" and lacks_bfloat16():
        emulated = (
            f"run.precision = 'bfloat16': this processor has no such products; one of matrices takes "
            f"{slowness_of_bfloat16():.2g} times as long as in float32"
        )
        return replace(choice, warning="; ".join(filter(None, (choice.warning, emulated))))
    if wanted.executor == "auto" and wanted.precision == "float32" and device == "cpu" and _may_gain(trainer):
        return replace(choice, why=f"{choice.why}; run.precision = 'bfloat16' may be faster, with other results")
    return choice


def _may_gain(trainer: ClientTrainer) -> bool:
    """Return whether clients may train faster in bfloat16: networks with convolutions that stay rounded between layers.

    Dense ones do not, since a step of few samples is mostly weights read and written.
    """
    module = getattr(trainer, "module", None)
    if module is None or not has_bfloat16() or Rounded.of(module) is None:
        return False
    return any(isinstance(layer, nn.Conv2d) for layer in module.modules())


def make_executor(choice: ExecutorChoice, wanted: RunSettings, trainer: ClientTrainer, sent_bytes: int) -> Executor:
    """Return the executor of a choice; close it when the run is over. This process keeps freed memory from now on.

    Raises:
        InputError: a Ray cluster that does not answer, or a fleet, which cannot be made here.
    """
    require_no_fleet(wanted)
    keep_freed_memory()
    plain = plain_of(trainer)
    by_cohort = Weighted(plain) if choice.whole and plain else None
    if choice.name == "ray":
        return Ray(trainer, choice.workers or None, wanted.address, choice.whole)
    if choice.name == "cores":
        return Cores(trainer, choice.workers, sent_bytes, by_cohort)
    if choice.name == "stacked" and plain:
        return Stacked(plain, wanted.stack_bytes, wanted.cuda_graphs)
    return by_cohort or Serial(trainer, wanted.debug)


def require_no_fleet(wanted: RunSettings) -> None:
    """Refuse the executor that needs other machines.

    Raises:
        InputError: says which commands have them.
    """
    if wanted.executor == "fleet":
        raise InputError(
            "run.executor = 'fleet': needs a fleet; use `atoll fleet up` (all on this machine) or "
            "`atoll fleet server`, or set run.executor = 'auto'"
        )


def require_states_apart(method: Method) -> None:
    """Refuse a method on a fleet that needs what clients keep or hold anywhere but at their nodes.

    Server rules and combine rules see models alone; what finds clusters (`Method.regroup`) sees what clients keep.

    Raises:
        InputError: says which executors take it.
    """
    refuse_epochs(method.rule, "run.executor = 'fleet', whose nodes take local.steps; use another executor")
    if method.labels is not None:
        raise InputError(
            "run.executor = 'fleet': the method's clusters are learned from clients' data or updates, which nodes "
            "keep to themselves; use 'serial', 'cores', 'ray' or 'auto'"
        )


def require_measuring(settings: Settings) -> None:
    """Refuse to cluster anew by what is measured where nothing is.

    Raises:
        InputError: says where it is.
    """
    if settings.fleet.recluster_every is not None and settings.run.executor != "fleet":
        raise InputError(
            f"fleet.recluster_every = {settings.fleet.recluster_every}: needs run.executor = 'fleet', where clients "
            "are measured; in simulation clients that move are clustered anew by network.recluster_every"
        )


def count_cores() -> int:
    """Return the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _take_wanted(wanted: RunSettings, method: Method, trainer: ClientTrainer, device: str) -> ExecutorChoice:
    """Return the executor that the settings name, if it gives what training client by client gives."""
    reason, why = _why_not_weighted(method, trainer), "as run.executor says"
    if wanted.executor == "fleet":
        require_states_apart(method)
        return ExecutorChoice("fleet", why)
    if wanted.executor == "cores":
        if device != "cpu":
            raise InputError(f"run.executor = 'cores': trains on the CPU, but run.device = {wanted.device!r}")
        return _with_workers("cores", why, not reason, wanted)
    if wanted.executor == "ray":
        if device != "cpu":
            raise InputError(f"run.executor = 'ray': trains on the CPU, but run.device = {wanted.device!r}")
        if wanted.address is not None:
            return ExecutorChoice("ray", why, not reason, wanted.workers or 0)
        return _with_workers("ray", why, not reason, wanted)
    if wanted.executor == "stacked":
        if reason := _why_not_stacked(trainer):
            raise InputError(f"run.executor = 'stacked': {reason}; use 'serial' or 'auto'")
        return ExecutorChoice("stacked", why)
    if wanted.executor == "weighted":
        if reason:
            raise InputError(f"run.executor = 'weighted': {reason}; use 'serial' or 'auto'")
        return ExecutorChoice("weighted", why, whole=True)
    return ExecutorChoice("serial", why)


def _with_workers(name: Literal["cores", "ray"], why: str, whole: bool, wanted: RunSettings) -> ExecutorChoice:
    cores = count_cores()
    workers = wanted.workers or cores
    many = f"run.workers = {workers}: this process may use {cores} cores; more workers are no faster"
    return ExecutorChoice(name, why, whole, workers, many if workers > cores else "")


def _choose_on_gpu(method: Method, trainer: ClientTrainer) -> ExecutorChoice:
    if not (reason := _why_not_stacked(trainer)):
        return ExecutorChoice("stacked", "many clients in a batch keep a GPU busy")
    if not _why_not_weighted(method, trainer):
        return ExecutorChoice("weighted", f"a cohort is one step of SGD; not stacked: {reason}", whole=True)
    return ExecutorChoice("serial", f"not stacked: {reason}")


def _choose_on_cpu(
    wanted: RunSettings, method: Method, trainer: ClientTrainer, start: Model, sent_bytes: int
) -> ExecutorChoice:
    """Return `cores` where it is expected to be faster, else what its workers would do, in this process."""
    whole = not _why_not_weighted(method, trainer)
    how = "a cohort is one step of SGD" if whole else "client by client"
    workers = min(wanted.workers or count_cores(), count_cores())
    plain = plain_of(trainer)
    executor = Weighted(plain) if whole and plain else Serial(trainer)
    units = Units(method.schedule, whole, whole and executor.carries_through(method.combined_by))
    reason = why_not_fork() or _why_not_side_by_side(units, workers)
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
    """Return why nothing can be done at the same time; an empty text if something can."""
    if workers == 1:
        return "there is one core for them"
    if units.at_a_time < 2:
        return f"one {units.name} trains at a time"
    return ""


def why_not_fork() -> str:
    """Return why this process should not fork workers of its own accord; an empty text if it may."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this platform cannot fork processes"
    if sys.platform == "darwin":
        return "macOS's own libraries may fail in forked processes"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "CUDA is in use in this process, and does not survive a fork"
    return ""


def _why_not_stacked(trainer: ClientTrainer) -> str:
    plain = plain_of(trainer)
    return why_not_stacked(plain) if plain else trainer.why_one_by_one


def _why_not_weighted(method: Method, trainer: ClientTrainer) -> str:
    plain = plain_of(trainer)
    if not plain:
        return trainer.why_one_by_one
    if method.screening or not is_weighted_mean(method.combined_by):
        return "the method's combine rule must be the mean of models"
    return why_not_weighted(plain.rule, plain.module)
