"""What nodes are asked; what is accepted of their replies, which may be anything, and why the rest is rejected."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np

from atoll.aggregation.reductions import update_norm
from atoll.engine.cohorts import Cohort
from atoll.engine.stages import Stage, receive, sent_form
from atoll.fleet.agreed import transport as base
from atoll.fleet.agreed.messages import (
    AnyHeader,
    LossesReply,
    LossesRequest,
    Refusal,
    RefusalCode,
    TrainReply,
    TrainRequest,
    Unreadable,
    decode_reply,
    encode,
    most_bytes,
)
from atoll.fleet.node.versions import name_of
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
        "unusual",
        "unsound",
    ]
    | RefusalCode
)
"""Why there is no result from a client.

- ``late``, ``gone``, ``failed``: no reply in time, the node is absent, its task raised an error;
- ``aside``: it was skipped, since it was late too often (`fleet.server.attendance`);
- ``oversized``, ``unreadable``: more bytes than the model can have, not a message;
- ``wrong_sender``: about a client that was not asked, or not from the client's node;
- ``wrong_event``, ``repeated``: an answer to another event, or to another call;
- ``wrong_count``: the number of samples differs from the report, or no training passes so many; ``wrong_form``: other
  names, shapes or types, or bytes that a stage cannot decode;
- ``not_finite``, ``too_large``: a NaN or an infinity; a model value beyond 1e12, a loss beyond 1e15, an update beyond
  the largest norm;
- ``unusual``: an update much longer than those before it, and than others of its event (`aggregation.usual_norms`);
- ``unsound``: its model gives no finite losses, or the combined model does not although each single one does;
- ``unknown_task``, ``wrong_settings``, ``wrong_client``: reported by the node, as ``unreadable`` and ``failed`` may be;
- ``not_allowed``: reported by the node: its owner does not allow the server's changes;
- ``no_state``: reported by the node: the client's state is missing, since its store was deleted or damaged;
- ``not_needed``, ``over_budget``: reported by the node: the owner's copy of the method does not need these losses, or
  those of as many models; or its owner's limit is reached;
- ``replayed``, ``wrong_keys``, ``wrong_work``, ``too_few``: reported by the node of a secure sum: it has answered this
  step before, or does not know the sum; keys, shares or signatures are wrong; it is to work on something else than the
  nodes have signed; fewer nodes take part than it requires. ``wrong_keys`` also stands for clients of a node that broke
  the protocol, ``too_few`` for a cohort that lost too many, so that nobody's result counts;
- ``out_of_range``: reported by the node: an update does not fit into `secure.range`.
"""

REASONS: tuple[Reason, ...] = tuple(dict.fromkeys(code for kind in get_args(Reason) for code in get_args(kind)))


@dataclass(frozen=True, eq=False)
class Expected:
    """What one client was asked: everything that its reply is checked against.

    Attributes:
        start: the start model; None for losses.
        form: of the update before the first stage.
        samples: reported number of samples; None: unknown.
        max_update_norm: largest accepted norm of an update; None: any.
        state: placeholder for the client's new state, where clients keep one.
        can_pass: returns whether it may have trained on so many samples of so many that it has (`Agreement.can_pass`).
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
    can_pass: Callable[[int, int], bool] = lambda passed, samples: True

    @property
    def sent_form(self) -> Form:
        """Form of the message."""
        return sent_form(self.stages, self.form)

    @property
    def tells_loss(self) -> bool:
        """Whether the client reports its training loss."""
        return all(stage.tells_loss for stage in self.stages)

    def head_to_train(self, digest: str, cohort: Cohort, resumable: Iterable[Mapping[int, Model]]) -> bytes:
        """Return the part of a task that only this node receives, with nothing about other clients; models follow it.

        `resumable` are the clients' states in each checkpoint left, and after the last event.
        """
        state = cohort.states.get(self.client)
        named = [name_of(states[self.client]) for states in resumable if self.client in states]
        request = TrainRequest(
            settings_digest=digest,
            nonce=self.nonce,
            event=cohort.event,
            drawn_as=cohort.draws,
            round=cohort.round,
            repeat=cohort.repeat,
            cluster=cohort.cluster,
            client=self.client,
            state=None if state is None else name_of(state),
            resumable=tuple(dict.fromkeys(named)),
        )
        return encode(request)

    def head_to_measure(self, digest: str, round_: int) -> bytes:
        """Return the same for measuring models on the client's data."""
        return encode(LossesRequest(settings_digest=digest, nonce=self.nonce, round=round_, client=self.client))


@dataclass(frozen=True, eq=False)
class CheckedUpdate:
    """A client's accepted result, its training time, and the samples in all its batches."""

    outcome: ClientUpdate
    seconds: float
    passed: int


def read_trained(asked: Expected, sender: str, reply: bytes | base.Failure) -> CheckedUpdate | Reason:
    """Return a client's result, or why it is rejected.

    It is accepted if it is not too large for its form, readable, from the client's own node, for this client, event and
    call, with the number of samples reported before, with exactly the tensors of the form, all finite and none absurdly
    large, and if the norm of its update is within the limit.
    """
    opened = _open(asked, sender, reply, TrainReply, most_bytes(asked.sent_form))
    if isinstance(opened, str):
        return opened
    head, models = opened
    if (head.event, head.repeat) != (asked.event, asked.repeat):
        return "wrong_event"
    if head.nonce != asked.nonce:
        return "repeated"
    is_agreed = head.samples >= 1 and head.samples == (asked.samples or head.samples)
    if not is_agreed or not asked.can_pass(head.passed, head.samples):
        return "wrong_count"
    if len(models) != 1 or form_of(models[0]) != asked.sent_form:
        return "wrong_form"
    try:
        received = receive(asked.stages, models[0], asked.start or {}, asked.form)
    except ValueError:
        return "wrong_form"
    there = next(iter((asked.start or received).values())).device  # the server's run.device
    model = {name: own.to(there) for name, own in received.items()}
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
    """Return the losses that a client measured, [models], or why they are rejected."""
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
    """Return a reply's header and models, or why they are rejected."""
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
