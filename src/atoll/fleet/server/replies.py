"""Replies of nodes, which may be anything: what is accepted, and why the rest is not."""

import math
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from atoll.aggregation.reductions import update_norm
from atoll.engine.stages import Stage, receive, sent_form
from atoll.fleet.agreed import transport as base
from atoll.fleet.agreed.messages import (
    AnyHeader,
    LossesReply,
    Refusal,
    RefusalCode,
    TrainReply,
    Unreadable,
    decode_reply,
    most_bytes,
)
from atoll.local.models import Form, Model, form_of
from atoll.local.task import ClientUpdate
from atoll.local.weights import LARGEST_LOSS, is_bounded, is_finite
from atoll.support.arrays import Floats

OfClient = TypeVar("OfClient", TrainReply, LossesReply)

Reason = (
    Literal[
        "late",
        "gone",
        "aside",
        "failed",
        "oversized",
        "wrong_sender",
        "wrong_event",
        "repeated",
        "wrong_count",
        "wrong_form",
        "not_finite",
        "too_large",
        "unsound",
    ]
    | RefusalCode
)
"""Why there is no result from a client.

- ``late``, ``gone``, ``failed``: nothing came in time, the node is not there, its work raised;
- ``aside``: it was not asked, since it was late too often (`fleet.server.attendance`);
- ``oversized``, ``unreadable``: more bytes than the model can have, no message;
- ``wrong_sender``: about another client than was asked, or from another node than its own;
- ``wrong_event``, ``repeated``: an answer to another event, or to another call than this one;
- ``wrong_count``: other samples than reported; ``wrong_form``: other names, shapes or types, or bytes that
  `travel.codec` does not decode;
- ``not_finite``, ``too_large``: a NaN or an infinity; a number of the model beyond 1e12, a loss beyond 1e15, an update
  longer than allowed;
- ``unsound``: its model gives no finite losses; or what it was combined to with others does not, although each does;
- ``unknown_task``, ``wrong_settings``, ``wrong_client``: said by the node itself, as may be ``unreadable``, ``failed``;
- ``not_allowed``: said by the node: its owner does not let the server change what it has changed;
- ``no_state``: said by the node, which no longer has what its client kept: its store was deleted or damaged;
- ``not_needed``, ``over_budget``: said by the node: its owner's copy of the method asks for no such losses, or not for
  those of so many models; or its owner lets it do no more;
- ``replayed``, ``wrong_keys``, ``too_few``: said by the node of a secure sum: it has answered this step before, or
  knows of no such sum; its own or others' keys, shares or signatures are not what they should be; fewer nodes take part
  than it asks for. ``too_few`` is also said of a cohort of whom too many were lost, so that nobody's result counts;
- ``out_of_range``: said by the node: an update that `secure.range` does not hold.
"""

REASONS: tuple[Reason, ...] = (
    "late",
    "gone",
    "aside",
    "failed",
    "oversized",
    "unreadable",
    "wrong_sender",
    "wrong_event",
    "repeated",
    "wrong_count",
    "wrong_form",
    "not_finite",
    "too_large",
    "unsound",
    "unknown_task",
    "wrong_settings",
    "not_allowed",
    "wrong_client",
    "no_state",
    "not_needed",
    "over_budget",
    "replayed",
    "wrong_keys",
    "too_few",
    "out_of_range",
)


@dataclass(frozen=True, eq=False)
class Expected:
    """What one client was asked; all that its reply is held against.

    Attributes:
        node: the client's.
        client: its number.
        nonce: of the call.
        event: the event's number.
        repeat: the intra-cluster round's.
        start: the model that it was sent; None where losses were asked.
        form: of its update, before any stage.
        samples: how many it said that it holds; None: it was not asked.
        max_update_norm: the longest update that is taken; None: any.
        models: how many models it was to measure.
        state: what stands for what it then keeps, where clients keep anything.
        stages: what becomes of its update, in order.
    """

    node: str
    client: int
    nonce: str
    form: Form
    event: int = 0
    repeat: int = 0
    start: Model | None = None
    samples: int | None = None
    max_update_norm: float | None = None
    models: int = 0
    state: Model | None = None
    stages: tuple[Stage, ...] = ()

    @property
    def sent_form(self) -> Form:
        """The form of what it must send."""
        return sent_form(self.stages, self.form)

    @property
    def tells_loss(self) -> bool:
        """Whether it tells its training loss."""
        return all(stage.tells_loss for stage in self.stages)


@dataclass(frozen=True, eq=False)
class CheckedUpdate:
    """A client's result that passed the checks, the time it took there, and the samples in all its batches."""

    outcome: ClientUpdate
    seconds: float
    passed: int


def read_trained(asked: Expected, sender: str, reply: bytes | base.Failure) -> CheckedUpdate | Reason:
    """Return a client's result, or why it is refused.

    It is taken if it is no longer than its form can be, readable, from the client's own node, for this client, event
    and call, with the number of samples that it reported before, with exactly the tensors of the form, all finite and
    none absurdly large, and its update no longer than allowed.
    """
    opened = _open(asked, sender, reply, TrainReply, most_bytes(asked.sent_form))
    if isinstance(opened, str):
        return opened
    head, models = opened
    if (head.event, head.repeat) != (asked.event, asked.repeat):
        return "wrong_event"
    if head.nonce != asked.nonce:
        return "repeated"
    if head.samples < 1 or head.passed < 1 or head.samples != (asked.samples or head.samples):
        return "wrong_count"
    if len(models) != 1 or form_of(models[0]) != asked.sent_form:
        return "wrong_form"
    try:
        model = receive(asked.stages, models[0], asked.start or {}, asked.form)
    except ValueError:
        return "wrong_form"
    told = head.loss if asked.tells_loss else 0.0
    if told is None or not is_finite(model, told):
        return "not_finite"
    if not is_bounded(model, told):
        return "too_large"
    limit = asked.max_update_norm
    if limit is not None and asked.start is not None and not update_norm(model, asked.start) <= limit:
        return "too_large"
    loss = told if asked.tells_loss else math.nan
    return CheckedUpdate(ClientUpdate(model, loss, asked.state), head.seconds, head.passed)


def read_losses(asked: Expected, sender: str, reply: bytes | base.Failure) -> Floats | Reason:
    """Return the losses that a client measured, [models], or why they are refused."""
    opened = _open(asked, sender, reply, LossesReply, most_bytes({}))
    if isinstance(opened, str):
        return opened
    head, models = opened
    if head.nonce != asked.nonce:
        return "repeated"
    if models or len(head.losses) != asked.models:
        return "wrong_form"
    if None in head.losses:
        return "not_finite"
    losses = np.array(head.losses, np.float64)
    return losses if (np.abs(losses) <= LARGEST_LOSS).all() else "too_large"


def open_reply(reply: bytes, kind: type[AnyHeader], most: int) -> tuple[AnyHeader, list[Model]] | Reason:
    """Return a reply's header and models, or why they are refused.

    Args:
        reply: what came.
        kind: of the header.
        most: bytes that it may have.
    """
    if len(reply) > most:
        return "oversized"
    try:
        head, models = decode_reply(reply, kind)
    except Unreadable:
        return "unreadable"
    return head.code if isinstance(head, Refusal) else (head, models)


def _open(
    asked: Expected, sender: str, reply: bytes | base.Failure, kind: type[OfClient], most: int
) -> tuple[OfClient, list[Model]] | Reason:
    if isinstance(reply, base.Failure):
        return "oversized" if reply.reason == "too_large" else reply.reason
    if sender != asked.node:
        return "wrong_sender"
    opened = open_reply(reply, kind, most)
    if not isinstance(opened, str) and opened[0].client != asked.client:
        return "wrong_sender"
    return opened
