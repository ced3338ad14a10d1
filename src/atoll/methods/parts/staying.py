"""The stage that keeps part of the model at each client."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.engine.method import Method
from atoll.engine.stages import Need, Stage
from atoll.local.models import Form, Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class Staying:
    """The client half: completes the start model with the client's own tensors, which never leave the client."""

    initial: Model

    def begin(self, task: ClientTask) -> ClientTask:
        """Return the task with the whole model as its start."""
        return replace(task, start=task.start | self._own(task))

    def send(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return the communicated part of the model, and the client's own tensors as its state."""
        sent = {name: tensor for name, tensor in update.model.items() if name not in self.initial}
        return ClientUpdate(sent, update.loss, {name: update.model[name] for name in self._own(task)})

    def form(self, form: Form) -> Form:
        """Return the form of the communicated part."""
        return {name: each for name, each in form.items() if name not in self.initial}

    def _own(self, task: ClientTask) -> Model:
        if task.state:
            return task.state
        device = next(iter(task.start.values())).device
        return {name: tensor.to(device) for name, tensor in self.initial.items()}


def keep_at_clients(method: Method, names: Collection[str], module: "nn.Module", told: str) -> Method:
    """Return the method with these tensors kept at the clients, each client's as its state, and not communicated.

    Frozen parameters are the same everywhere, so they are not kept as state. Without names the method is returned
    unchanged.

    Args:
        method: trains by the local rule alone; or, without the frozen parameters, keeps a part or trains parts.
        names: names of the module's parameters and buffers.
        module: the initial model.
        told: the setting that requests it, for error messages.

    Raises:
        InputError: nothing would be communicated, or the method does not support it.
    """
    from atoll.local.travel import frozen, require_whole  # late: reading settings needs no PyTorch
    from atoll.local.weights import read_model

    if not names:
        return method
    stays = tuple(name for name in module.state_dict() if name in names or name in method.stays)
    if not set(module.state_dict()).difference(stays, frozen(module)):
        raise InputError(f"{told}: all trained parameters would stay at the clients; some must be communicated")
    require_whole(module, stays, told)
    if shared := set(method.shared).intersection(names):
        raise InputError(
            f"{told}: {min(shared)!r} would not be communicated, but clusters share it (method.shared_layers)"
        )
    if set(names) <= set(frozen(module)):
        own_trainer = None if method.trained_by.trains_parts else method.lacking(Need.PLAIN_TRAINING)
        if own_trainer and not method.stays:
            raise InputError(f"{told}: cannot be used with {own_trainer}, which has its own trainer")
        return replace(method, stays=stays)
    own = Staying(read_model(module, set(stays).difference(frozen(module))))
    stage = Stage(
        name="stays",
        told=told,
        begin=own.begin,
        send=own.send,
        form=own.form,
        keeps_state=True,
        keeps_model=True,
        digest=stays,
        needs=_NEEDS,
        lacks={Need.NO_STATE: told, Need.PLAIN_TRAINING: told},
    )
    return replace(method, stays=stays, stages=(*method.stages, stage))


_NEEDS = {
    Need.NO_STATE: "clients already keep state",
    Need.NO_LOSSES: "clients would choose their clusters by models without the layers that stay",
    Need.FIXED_CLUSTERS: "clients would choose their clusters by models without the layers that stay",
    Need.NO_MOMENTS: "the optimiser's state is communicated with the model",
}
