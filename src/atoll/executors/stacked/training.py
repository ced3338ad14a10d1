"""The local steps of many clients at once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from atoll.executors.stacked.draws import Draws
from atoll.executors.stacked.fit import Fit, slot_of
from atoll.executors.stacked.graphs import Batch, Graphs, Parameters
from atoll.executors.stacked.streams import Streams, forward_in
from atoll.executors.stacked.tensors import Stack, finite_clients, pick, stack_tensors, stacked_names
from atoll.local.batches import as_tensor
from atoll.local.models import Model
from atoll.local.task import ClientTask
from atoll.local.trainer import Trainer, descend
from atoll.support.arrays import Floats
from atoll.support.many_seeds import generators
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

    def first(self, clients: int, device: torch.device) -> "TrainedStack":
        """Return the stack of its first clients, on this device."""
        stack = {name: tensor[:clients].to(device) for name, tensor in self.stack.items()}
        common = {name: each.to(device) if each.is_cuda else each for name, each in self.common.items()}  # Adam's steps
        return TrainedStack(stack, common, self.losses[:clients])


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


@dataclass(frozen=True, eq=False)
class _Steps:
    """The local steps of clients in one stack; `model` has their start models, and buffers, which stay."""

    trainer: Trainer
    fit: Fit
    tasks: Sequence[ClientTask]
    model: Stack
    draws: Draws | None
    streams: Streams

    def measure(self, parameters: Model, inputs: Tensor, targets: Tensor, shares: Tensor | None = None) -> Tensor:
        """Return each client's loss on its batch."""
        outputs = forward_in(self.streams, self.trainer.module, self.model | parameters, inputs, self.fit.independent)
        each = self.trainer.batches.losses(outputs.flatten(0, 1), targets).reshape(len(self.tasks), -1)
        return each.mean(dim=1) if shares is None else (each * shares).sum(dim=1)

    def cut(self, gathered: Iterable[Batch], shares: Sequence[Tensor]) -> Iterator[Batch]:
        """Yield inputs [clients, samples, ...], targets [clients x samples], and the shares, for each step."""
        rule = self.trainer.rule
        for inputs, targets in gathered:
            batch = inputs.reshape(len(self.tasks), -1, *inputs.shape[1:]), targets, *shares
            yield from repeat(batch, rule.steps if rule.batch_size == "full" else 1)

    def take(self, parameters: Parameters, sent: Model, losses: Iterable[Tensor]) -> tuple[Tensor, Model]:
        """Take a step down each loss; return the sums of the losses, and the optimiser's moments."""
        trainer = self.trainer
        total = torch.zeros(len(self.tasks), dtype=trainer.batches.dtype, device=trainer.batches.inputs.device)
        task = replace(self.tasks[0], start=sent)
        return total, descend(trainer.rule, parameters, task, losses, trainer.by_hand, total)[1]

    def gather(self, given: Tensor) -> Iterator[Batch]:
        """Yield each step's samples: those at these positions in the pool, or those that the draws give."""
        return self.trainer.batches.gather_each(self.draws.rows(given) if self.draws else given)

    def take_all(self, start: Model, given: Tensor) -> tuple[Tensor, Model]:
        """Take all steps on the samples that `gather` yields; return the sums of the losses, and the trained models.

        A GPU can capture this as a graph: only what is given differs from call to call.
        """
        grads = {name: each.requires_grad for name, each in self.trainer.module.named_parameters()}
        parameters = {name: nn.Parameter(each.clone(), grads[name]) for name, each in start.items()}
        losses = (self.measure({**parameters}, *batch) for batch in self.cut(self.gather(given), ()))
        total, _ = self.take(parameters, start, losses)
        return total, {name: each.detach() for name, each in parameters.items()}


@one_thread()
def train_stack(
    trainer: Trainer,
    fit: Fit,
    tasks: Sequence[ClientTask],
    graphs: Graphs | None = None,
    draws: Draws | None = None,
    streams: Streams = (),
) -> TrainedStack:
    """Train clients of one kind in one batch.

    With `graphs`, a GPU captures all steps, or one, and replays them; with `draws`, batches are drawn by it; with
    `streams`, it computes as many parts of the stack at once.
    """
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
    if len(parameters) < len(model) or trainer.apart:
        graphs = None  # which read buffers where they were when they were captured
    module.train()
    rows, shares = (np.empty(0, np.int32), []) if draws else _draw_rows(trainer, tasks)
    given = draws.begin(tasks) if draws else as_tensor(rows).to(trainer.batches.inputs.device)
    steps = _Steps(trainer, fit, tasks, model, draws, streams)
    moments: Model = {}
    if graphs and trainer.by_hand and rule.is_constant and rule.batch_size != "full":
        total, trained = graphs.run(steps.take_all, model, (given,))
        stack = {name: tensor.clone() for name, tensor in trained.items()}
    else:
        if graphs:
            parameters = graphs.place(parameters)
            for each in parameters.values() if fit.may_keep else ():
                if each.requires_grad:
                    each.register_hook(torch.clone)  # type: ignore[no-untyped-call] # graphs put the next one where this is
        losses = (
            graphs.run(steps.measure, parameters, batch) if graphs else steps.measure({**parameters}, *batch)
            for batch in steps.cut(steps.gather(given), shares)
        )
        total, moments = steps.take(parameters, sent, losses)
        stack = {name: each.detach().clone() if graphs else each.detach() for name, each in parameters.items()}
    mean_losses = _require_finite(trainer, tasks, stack, total / rule.steps)
    common = {key: tensor for key, tensor in moments.items() if slot_of(key) in fit.shared}
    return TrainedStack(stack | {key: own for key, own in moments.items() if key not in common}, common, mean_losses)


def _draw_rows(trainer: Trainer, tasks: Sequence[ClientTask]) -> tuple[npt.NDArray[np.int32], list[Tensor]]:
    """Return the positions of batches [batches, clients x samples], and samples' shares where some are padding."""
    if trainer.rule.batch_size != "full":
        drawing = generators(trainer.seed, "batches", np.array([task.key for task in tasks]))
        return np.concatenate(list(map(trainer.draw_rows, tasks, drawing)), axis=1), []
    own = [trainer.draw_rows(task)[0] for task in tasks]
    sizes = np.array([len(rows) for rows in own])[:, None]
    rows = np.concatenate([np.resize(rows, sizes.max()) for rows in own])[None]
    shares = torch.from_numpy((np.arange(sizes.max()) < sizes) / sizes)
    return rows, [shares.to(trainer.batches.inputs.device, trainer.batches.dtype)] if sizes.min() < sizes.max() else []


def _require_finite(trainer: Trainer, tasks: Sequence[ClientTask], stack: Stack, losses: Tensor) -> Floats:
    """Return the losses, fetched from the device together with whether all is finite."""
    table = torch.stack([losses, finite_clients(stack).to(losses)]).cpu().double().numpy()
    for client in np.flatnonzero(~(np.isfinite(table[0]) & (table[1] > 0))).tolist():
        trainer.require_finite(tasks[client], pick(stack, client), float(table[0, client]))
    return np.asarray(table[0])
