"""From settings to the executor that trains a run's cohorts."""

import os

from atoll.combine import average_models
from atoll.engine import Method
from atoll.errors import InputError
from atoll.executors import Cores, Executor, Serial, Stacked, Trains, Weighted, why_not_weighted
from atoll.local import Trainer
from atoll.settings import Run


def choose_executor(wanted: Run, method: Method, trainer: Trains, sent_bytes: int) -> Executor:
    """Return the executor that the settings name; `auto` takes the weighted pass where it fits, else serial.

    Args:
        wanted: the section of the settings.
        method: what the executor is for.
        trainer: trains one client.
        sent_bytes: the most bytes of a model that is sent, with the moments that travel with it.

    Raises:
        InputError: an executor that would not give what training client by client gives, and why.
    """
    reason = _why_not_weighted(method, trainer)
    if wanted.executor == "cores":
        if wanted.device != "cpu":
            raise InputError(f"run.executor = 'cores': trains on the CPU, but run.device = {wanted.device!r}")
        whole = None if reason or not isinstance(trainer, Trainer) else Weighted(trainer)
        return Cores(trainer, wanted.workers or count_cores(), sent_bytes, whole)
    if wanted.executor == "stacked":
        if not isinstance(trainer, Trainer):
            raise InputError("run.executor = 'stacked': parties hold different models; use 'serial' or 'auto'")
        try:
            return Stacked(trainer)
        except ValueError as error:
            raise InputError(f"run.executor = 'stacked': {error}; use 'serial' or 'auto'") from error
    if wanted.executor == "weighted" and reason:
        raise InputError(f"run.executor = 'weighted': {reason}; use 'serial' or 'auto'")
    if wanted.executor == "serial" or reason or not isinstance(trainer, Trainer):
        return Serial(trainer)
    return Weighted(trainer)


def count_cores() -> int:
    """Return the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _why_not_weighted(method: Method, trainer: Trains) -> str:
    if not isinstance(trainer, Trainer):
        return "parties hold different models"
    if method.combine is not average_models:
        return "the method's combine rule must be the mean of models"
    return why_not_weighted(trainer.rule, trainer.module)
