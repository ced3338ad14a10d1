"""A stage of one's own: the signs of an update, and what they lose kept for the next one."""

import torch
from torch import nn

import atoll
from atoll.local.models import Form, Model


def sign() -> atoll.Stage:
    """Send one bit a number and a scale a tensor, with error feedback (Karimireddy et al. 2019)."""

    def send(task: atoll.ClientTask, update: atoll.ClientUpdate) -> atoll.ClientUpdate:
        lost, sent = task.state or {}, Model()
        for name, own in update.model.items():
            wanted = own - task.start.get(name, torch.zeros_like(own)) + lost.get(name, torch.zeros_like(own))
            scale = wanted.abs().mean()
            sent |= {f"{name}.signs": wanted > 0, f"{name}.scale": scale}
            lost = {**lost, name: wanted - scale * (2.0 * (wanted > 0) - 1)}
        return atoll.ClientUpdate(sent, update.loss, lost)

    def receive(sent: Model, start: Model, form: Form) -> Model:
        moves = {name: sent[f"{name}.scale"] * (2.0 * sent[f"{name}.signs"] - 1) for name in form}
        return {name: start[name] + move if name in start else move for name, move in moves.items()}

    def form(form: Form) -> Form:
        signs = {f"{name}.signs": (shape, torch.bool) for name, (shape, _) in form.items()}
        scales = {f"{name}.scale": (torch.Size([]), kind) for name, (_, kind) in form.items()}
        return {name: {**signs, **scales}[name] for base in form for name in (f"{base}.signs", f"{base}.scale")}

    return atoll.Stage(name="sign", told="sign", send=send, receive=receive, form=form, keeps_state=True)


def layered() -> nn.Module:
    """A small network with a layer that normalises, whose tensors are all floating point."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 10))


def boastful() -> atoll.Stage:
    """Send more than the form says."""
    return atoll.Stage(
        name="boastful",
        told="boastful",
        send=lambda task, update: atoll.ClientUpdate({**update.model, "more": torch.zeros(3)}, update.loss),
    )


def halved() -> atoll.Stage:
    """Return from the server half something else than the client half was given."""
    return atoll.Stage(
        name="halved",
        told="halved",
        send=lambda task, update: update,
        receive=lambda sent, start, form: {name: each.half() for name, each in sent.items()},
    )


def forgetful() -> atoll.Stage:
    """Say that it keeps something, and keep nothing."""
    return atoll.Stage(name="forgetful", told="forgetful", send=lambda task, update: update, keeps_state=True)


def back() -> atoll.Stage:
    """Take every client back to its start, at the server alone."""
    return atoll.Stage(name="back", receive=lambda sent, start, form: dict(start))


def no_stage() -> int:
    """Return no stage."""
    return 3
