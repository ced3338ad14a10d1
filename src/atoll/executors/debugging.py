"""`run.debug`: errors of training name the client and the step, and keep their traceback."""

import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from atoll.engine.cohorts import ClientTrainer
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import AtollError, RunError


class BadStep(ArithmeticError):
    """A loss, a gradient, or a number of the model after a step is not finite."""


class _FiniteLosses(TorchFunctionMode):
    """Refuses a loss that is not finite although its gradient has no NaN, which anomaly detection refuses first."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if function is Tensor.backward and not torch.isfinite(args[0]).all():
            raise BadStep("the loss is not finite")
        return found


@dataclass
class ModuleWatch:
    """The progress of a client's training.

    Attributes:
        steps: number of optimiser steps taken.
        under_way: nested calls of `step`, more than one if a subclass calls the `step` that it overrides.
        warned: PyTorch's warnings so far, such as the forward call whose backward pass failed.
    """

    steps: int = 0
    under_way: int = 0
    warned: list[str] = field(default_factory=list)


def train_watched(trainer: ClientTrainer, task: ClientTask) -> ClientUpdate:
    """Return the client's update, bit-identical to ``trainer.train(task)``; several times slower.

    PyTorch's anomaly detection stops at the first operation whose gradient is NaN, and `BadStep` at the first loss,
    gradient or number of the model that is not finite.
    """
    watch = ModuleWatch()
    try:
        with _watched(watch, getattr(trainer, "module", nn.Module()), task.start):
            return trainer.train(task)
    except AtollError as error:
        error.add_note(_tell_all(error, watch))
        raise
    except Exception as error:  # raised by a user's model, loss or optimiser
        where = f"event {task.event}, cluster {task.cluster}, client {task.client}, step {watch.steps + 1}"
        failed = RunError(f"{where}: training failed ({type(error).__name__}: {error})")
        failed.add_note(_tell_all(error, watch))
        raise failed from error


def measure_watched(trainer: ClientTrainer, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
    """Return the mean losses, [clients, models]; an error names the first client for whom it recurs."""
    try:
        return trainer.losses(models, clients, round_)
    except Exception as error:  # raised by a user's model or loss
        for client in clients if len(clients) > 1 else ():
            measure_watched(trainer, models, np.array([client]), round_)
        at_fault = f"client {clients[0]}" if len(clients) == 1 else "clients"
        reason = f"{type(error).__name__}: {error}"
        failed = RunError(f"round {round_}, {at_fault}: measuring the clusters' models failed ({reason})")
        failed.add_note(_tell_all(error, ModuleWatch()))
        raise failed from error


@contextmanager
def _watched(watch: ModuleWatch, module: nn.Module, start: Model) -> Iterator[None]:
    """Check the steps of all optimisers; errors give the names in the module, whose buffers in `start` count too."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}

    def named(optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
        held = (each for group in optimizer.param_groups for each in group["params"])
        return [(names.get(id(parameter), "a parameter"), parameter) for parameter in held]

    def before(optimizer: torch.optim.Optimizer, _arguments: object, _named: object) -> None:
        watch.under_way += 1
        for name, parameter in named(optimizer):
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                raise BadStep(f"the gradient of {name!r} is not finite")

    def after(optimizer: torch.optim.Optimizer, _arguments: object, _named: object) -> None:
        buffers = (each for each in module.named_buffers() if each[0] in start)
        for name, tensor in (*named(optimizer), *buffers):
            if not torch.isfinite(tensor).all():
                raise BadStep(f"{name!r} is not finite after the step")
        watch.under_way -= 1
        watch.steps += watch.under_way == 0

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.autograd.set_detect_anomaly(True), _FiniteLosses():
                yield
        finally:
            watch.warned += [str(each.message) for each in caught]
            for hook in hooks:
                hook.remove()
    for each in caught:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _tell_all(error: BaseException, watch: ModuleWatch) -> str:
    return "\n".join([*watch.warned, "".join(traceback.format_exception(error)).rstrip()])
