"""Clients with models of their own between several centres (FedSoft): the module, its trainer, and what travels."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from atoll.aggregation.mean import Weighted, mean
from atoll.engine.stages import Need, Stage
from atoll.local.batches import cut_rows
from atoll.local.models import Form, Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend

OWN, IMPORTANCE = "own.", "importance"


class OwnAndCentres(nn.Module):
    """A client's own model, which predicts, and S centres ``components.s.*``; `importance` [S] is the client's u."""

    importance: Tensor

    def __init__(self, own: nn.Module, centres: Sequence[nn.Module]) -> None:
        super().__init__()
        self.own, self.components = own, nn.ModuleList(centres)
        self.register_buffer(IMPORTANCE, torch.ones(len(centres), dtype=next(own.parameters()).dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [n, *shape] to [n, outputs] by the client's own model."""
        return torch.as_tensor(self.own(inputs))


class SoftTrainer(Trainer):
    """Takes the rule's steps on a client's own model, pulled toward each centre by its importance to the client."""

    def __init__(self, *given: Any, penalty: float, least: float, **named: Any) -> None:
        """Set up a `Trainer` with the weight of the pull, lambda, and the least importance, sigma."""
        super().__init__(*given, **named)
        self.penalty, self.least = penalty, least

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's own model and importances, with the centres as they were sent."""
        whole = self.module
        assert isinstance(whole, OwnAndCentres)
        centres = [_as_own(task.start, centre) for centre in range(len(whole.components))]
        importance = self._estimate(centres, task)
        # lambda / 2 * sum of u_s ||w - c_s||^2 pulls like one term toward the centres' mean, weighted by u.
        pull = mean(zip(importance.tolist(), centres, strict=True))
        rule = replace(self.rule, proximal=self.penalty * sum(importance.tolist()))
        own = {f"{OWN}{name}": each for name, each in whole.own.named_parameters()}
        with self.at_work(task, task.start | {IMPORTANCE: importance}):
            losses = (self.batches.losses(whole.own(x), y).mean() for x, y in self.draw_batches(task))
            loss, _ = descend(rule, own, replace(task, start=pull), losses, self.by_hand)
        return self.update_of(task, loss)

    def _estimate(self, centres: Sequence[Model], task: ClientTask) -> Tensor:
        """Return the importances: the share of samples on which each centre has the least loss, at least sigma."""
        parts = cut_rows([self.samples_of(task)], self.batches.inputs.device.type)
        losses = torch.cat([torch.from_numpy(self.sample_losses(centres, part)) for part in parts])
        counts = torch.bincount(losses.argmin(dim=1), minlength=len(centres))
        return (counts.to(self.batches.dtype) / len(losses)).clamp(min=self.least)


@dataclass(frozen=True, eq=False)
class OwnModelUp:
    """The stage in which a client keeps its own model, and sends it with its importances in the place of S centres."""

    initial: Model

    def begin(self, task: ClientTask) -> ClientTask:
        """Return the task with the client's own model in its start."""
        own = task.state or {name: self.initial[name] for name in self._travelling(task.start)}
        return replace(task, start=task.start | own)

    def send(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return the own model and the importances; the own model is also the state."""
        own = {name: update.model[name] for name in self._travelling(task.start)}
        return ClientUpdate(own | {IMPORTANCE: update.model[IMPORTANCE]}, update.loss, own)

    def form(self, form: Form) -> Form:
        """Return the form of one model and the importances."""
        return {name: form[_centre(name, 0)] for name in self._travelling(form)} | {IMPORTANCE: form[IMPORTANCE]}

    def receive(self, sent: Model, start: Model, form: Form) -> Model:
        """Return the own model in the place of every centre, for `average_by_importance`."""
        if bool(((sent[IMPORTANCE] <= 0) | (sent[IMPORTANCE] > 1)).any()):
            raise ValueError("importances must be above 0 and at most 1")
        every, names = range(len(sent[IMPORTANCE])), self._travelling(start)
        return {_centre(name, s): sent[name] for s in every for name in names} | {IMPORTANCE: sent[IMPORTANCE]}

    def _travelling(self, sent: Container[str]) -> list[str]:
        """Return the own model's tensors, without those that no centre has among what is sent (frozen ones)."""
        return [name for name in self.initial if _centre(name, 0) in sent]

    def stage(self, told: str) -> Stage:
        """Return the stage; `told` is the setting that asks for it."""
        return Stage(
            name="own-model",
            told=told,
            begin=self.begin,
            send=self.send,
            receive=self.receive,
            form=self.form,
            keeps_state=True,
            keeps_model=True,
            needs={Need.NO_LOSSES: "the model that predicts is each client's own, so what is sent has no losses"},
            lacks={Need.NO_STATE: told, Need.PLAIN_TRAINING: told, Need.NUMBERS: told},
        )


def average_by_importance(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Return each centre as the mean by samples and importance (a combine rule); integer tensors stay as they are."""
    totals = [0.0] * len(start[IMPORTANCE])
    centre_of = {name: int(name.split(".")[1]) for name in start if name != IMPORTANCE}
    sums = {name: torch.zeros_like(start[name]) for name in centre_of if start[name].is_floating_point()}
    for weight, model in models:
        shares = [weight * u for u in model[IMPORTANCE].tolist()]
        totals = [total + share for total, share in zip(totals, shares, strict=True)]
        for name, summed in sums.items():
            summed.add_(model[name], alpha=shares[centre_of[name]])
    return start | {name: summed.div_(totals[centre_of[name]]) for name, summed in sums.items()}


def _centre(own: str, centre: int) -> str:
    """Return the name of a tensor of the own model in a centre."""
    return f"components.{centre}.{own.removeprefix(OWN)}"


def _as_own(start: Model, centre: int) -> Model:
    prefix = _centre(OWN, centre)
    return {f"{OWN}{name.removeprefix(prefix)}": each for name, each in start.items() if name.startswith(prefix)}
