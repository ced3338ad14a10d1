"""The local steps of many clients at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
import torch
from torch import Tensor, nn

from atoll.executors.stacked.fit import Fit, slot_of
from atoll.executors.stacked.graphs import Graphs
from atoll.executors.stacked.tensors import Stack, finite_clients, forward, pick, stack_tensors, stacked_names
from atoll.local.models import Model
from atoll.local.task import ClientTask
from atoll.local.trainer import Trainer, descend
from atoll.support.arrays import Floats
from atoll.support.process import one_thread


@dataclass(frozen=True, eq=False)
class TrainedStack:
    """What stacked clients send back.

    Attributes:
        stack: their parameters, and their moments where the rule carries them.
        common: moments that all of them share.
        losses: mean training losses, [clients].
    """

    stack: Stack
    common: Model
    losses: Floats


def join(parts: Sequence[TrainedStack]) -> TrainedStack:
    """Return the stack of all clients of these, in order."""
    if len(parts) == 1:
        return parts[0]
    stack = {name: torch.cat([part.stack[name] for part in parts]) for name in parts[0].stack}
    return TrainedStack(stack, parts[0].common, np.concatenate([part.losses for part in parts]))


def kind_of(task: ClientTask, trainer: Trainer, fit: Fit) -> object:
    """Return what must be equal for tasks to share an optimiser: the learning rate, and the slots they share."""
    rule = trainer.rule
    moments = [key for key in task.start if "@" in key] if rule.carry_moments else []
    slots = tuple((key, float(task.start[key]) if slot_of(key) in fit.shared else None) for key in moments)
    return rule.lr_at(task.round), slots


def count_samples(task: ClientTask, trainer: Trainer) -> int:
    """Return the samples of each of the task's batches."""
    size = trainer.rule.batch_size
    return trainer.draw_rows(task).shape[1] if size == "full" else size


def client_bytes(trainer: Trainer, fit: Fit, samples: int) -> int:
    """Estimate what one client takes in a stack, with batches of so many samples.

    ``parameters x (model + gradient + moments + 1) + samples x (input + 3 x what its forward pass keeps)``; the
    proximal term needs the parameters once more, and moments that are carried are held twice.
    """
    rule = trainer.rule
    copies = 3 + fit.moments * (2 if rule.carry_moments else 1) + (1 if rule.proximal else 0)
    numbers = sum(parameter.nbytes for parameter in trainer.module.parameters())
    return copies * numbers + samples * (fit.input_bytes + 3 * fit.saved_bytes)


@one_thread()
def train_stack(trainer: Trainer, fit: Fit, tasks: Sequence[ClientTask], graphs: Graphs | None = None) -> TrainedStack:
    """Train clients of one kind in one batch; with `graphs`, a GPU captures a step once and replays it."""
    rule, module = trainer.rule, trainer.module
    device = next(module.parameters()).device
    models = [task.start for task in tasks]
    model = stack_tensors(models, [name for name in stacked_names(module) if name in models[0]], device)
    sent: Model = stack_tensors(models, list(model), device) if rule.proximal else {}
    if rule.carry_moments:
        keys = [key for key in models[0] if "@" in key]
        shared = {key: models[0][key] for key in keys if slot_of(key) in fit.shared}
        sent |= shared | stack_tensors(models, [key for key in keys if key not in shared], device)
    parameters = {
        name: nn.Parameter(model[name], own.requires_grad)
        for name, own in module.named_parameters()
        if name in model  # else it does not travel, and is the module's own
    }
    if len(parameters) < len(model):
        graphs = None  # which read buffers where they were when they were captured
    if graphs:
        parameters = graphs.place(parameters)
    total = torch.zeros(len(tasks), dtype=trainer.batches.dtype, device=device)

    def measure(parameters: Model, inputs: Tensor, targets: Tensor, shares: Tensor | None = None) -> Tensor:
        outputs = forward(module, model | parameters, inputs, fit.independent)
        each = trainer.batches.losses(outputs.flatten(0, 1), targets).reshape(len(tasks), -1)
        return each.mean(dim=1) if shares is None else (each * shares).sum(dim=1)

    losses = (
        graphs.run(measure, parameters, batch) if graphs else measure({**parameters}, *batch)
        for batch in _draw_batches(trainer, tasks)
    )
    module.train()
    _, moments = descend(rule, parameters, replace(tasks[0], start=sent), losses, trainer.by_hand, total)
    stack = {
        name: parameter.detach().clone() if graphs else parameter.detach() for name, parameter in parameters.items()
    }
    mean_losses = _require_finite(trainer, tasks, stack, total / rule.steps)
    common = {key: tensor for key, tensor in moments.items() if slot_of(key) in fit.shared}
    return TrainedStack(stack | {key: own for key, own in moments.items() if key not in common}, common, mean_losses)


def _draw_batches(trainer: Trainer, tasks: Sequence[ClientTask]) -> Iterator[tuple[Tensor, ...]]:
    """Yield inputs [clients, samples, ...], targets [clients x samples], and samples' shares where some are padding."""
    rule = trainer.rule
    if rule.batch_size != "full":
        rows = np.concatenate([trainer.draw_rows(task) for task in tasks], axis=1)
        for inputs, targets in trainer.batches.gather_each(rows):
            yield inputs.reshape(len(tasks), -1, *inputs.shape[1:]), targets
        return
    own = [trainer.draw_rows(task)[0] for task in tasks]
    sizes = np.array([len(rows) for rows in own])[:, None]
    inputs, targets = trainer.batches.gather(np.concatenate([np.resize(rows, sizes.max()) for rows in own]))
    inputs = inputs.reshape(len(tasks), -1, *inputs.shape[1:])
    shares = torch.from_numpy((np.arange(sizes.max()) < sizes) / sizes).to(inputs.device, trainer.batches.dtype)
    yield from repeat((inputs, targets, shares) if sizes.min() < sizes.max() else (inputs, targets), rule.steps)


def _require_finite(trainer: Trainer, tasks: Sequence[ClientTask], stack: Stack, losses: Tensor) -> Floats:
    """Return the losses, fetched from the device together with whether all is finite."""
    table = torch.stack([losses, finite_clients(stack).to(losses)]).cpu().double().numpy()
    for client in np.flatnonzero(~(np.isfinite(table[0]) & (table[1] > 0))).tolist():
        trainer.require_finite(tasks[client], pick(stack, client), float(table[0, client]))
    return np.asarray(table[0])
