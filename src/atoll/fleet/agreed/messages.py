"""Messages between server and nodes: a JSON header and safetensors, neither of which can carry code.

A message is 4 bytes ``ATL1``, the header's length in 4 bytes (most significant first), the header, and the body: the
tensors of model i under ``i/name``, or nothing.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import safetensors.torch
import torch
from pydantic import Field, TypeAdapter

from atoll.fleet.agreed.terms import Terms
from atoll.local.models import Form, Model
from atoll.support.limits import LARGEST, StrictRecord

MAGIC = b"ATL1"
MOST_HEADER_BYTES = 1 << 20

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Seconds = Annotated[float, Field(ge=0, le=LARGEST)]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]
Word = Annotated[str, Field(pattern=r"^[\w.+-]{1,40}$")]

RefusalCode = Literal[
    "unreadable",
    "unknown_task",
    "wrong_settings",
    "not_allowed",
    "wrong_client",
    "no_state",
    "not_needed",
    "over_budget",
    "failed",
    "replayed",
    "wrong_keys",
    "wrong_work",
    "too_few",
    "out_of_range",
]


class Unreadable(ValueError):
    """The bytes are not a message of the expected kind."""


class Refused(Exception):
    """A node declines a task."""

    def __init__(self, code: RefusalCode, told: str = "", about: str | None = None) -> None:
        """Give a code for the server, a text for the node's owner, and the name of another node that is at fault."""
        super().__init__(told or code)
        self.code: RefusalCode = code
        self.about = about


class Header(StrictRecord):
    """The part before the tensors."""


class DescribeRequest(Header):
    """Asks a node to describe its clients; its owner may let the server choose some `settings` (`terms.announce`)."""

    kind: Literal["describe"] = "describe"
    settings_digest: Token
    nonce: Token
    settings: Terms = Field(default_factory=dict)


class TrainRequest(Header):
    """Asks a node to train one of its clients; the body is the start model.

    Attributes:
        drawn_as: replaces the event in the key of random numbers; differs only in live asynchronous runs.
        repeat: number of the intra-cluster round within the event.
        state: the task that produced the client's state; None: no state yet.
        resumable: tasks whose states are named in checkpoints that the run may resume from, now or later.
    """

    kind: Literal["train"] = "train"
    settings_digest: Token
    nonce: Token
    event: Count
    drawn_as: Count
    round: Count
    repeat: Count
    cluster: Count
    client: Count
    state: Token | None = None
    resumable: Annotated[tuple[Token, ...], Field(max_length=8)] = ()


class LossesRequest(Header):
    """Asks a node for the losses of all models in the body on one of its clients' data."""

    kind: Literal["losses"] = "losses"
    settings_digest: Token
    nonce: Token
    round: Count
    client: Count


class ClientReport(Header):
    """What a node reports about a client.

    Attributes:
        epsilon: of the randomised response that produced the class counts; None: they are exact.
        utc_offset: hours; None: not reported.
        slots: slots of the day in which it can train; None: not reported.
        seconds_per_sample: measured training time; None: it has not trained yet.
    """

    client: Count
    samples: Annotated[int, Field(ge=1, le=LARGEST)]
    class_counts: tuple[Count, ...] | None = None
    epsilon: Annotated[float, Field(gt=0)] | None = None
    utc_offset: Annotated[float, Field(ge=-24, le=24)] | None = None
    slots: tuple[Annotated[int, Field(ge=0, lt=86_400)], ...] | None = None
    seconds_per_sample: Seconds | None = None


class DescribeReply(Header):
    """A node's description; `utc` is its clock's, in seconds since 1970."""

    kind: Literal["described"] = "described"
    nonce: Token
    utc: float
    versions: Annotated[dict[Word, Word], Field(max_length=20)]
    clients: Annotated[tuple[ClientReport, ...], Field(min_length=1)]


class TrainReply(Header):
    """A client's training result; the body is its message.

    Attributes:
        passed: samples in the batches of all its steps.
        seconds: training time on the node.
        loss: mean training loss; None if not finite.
    """

    kind: Literal["trained"] = "trained"
    nonce: Token
    event: Count
    repeat: Count
    client: Count
    samples: Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
    passed: Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
    seconds: Seconds
    loss: float | None


class LossesReply(Header):
    """Each model's mean loss on a client's data; None if not finite."""

    kind: Literal["measured"] = "measured"
    nonce: Token
    client: Count
    losses: tuple[float | None, ...]


class Refusal(Header):
    """Why a node declines a task, and which other node is at fault, if one is; it contains no free text."""

    kind: Literal["refused"] = "refused"
    code: RefusalCode
    about: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")] | None = None


AnyHeader = TypeVar("AnyHeader", bound=Header)


def pack(models: Sequence[Model]) -> bytes:
    """Return the body with these models, from any device."""
    tensors = {
        # Copied: safetensors rejects tensors that share memory, as tied layers may.
        f"{number}/{name}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for number, model in enumerate(models)
        for name, tensor in model.items()
    }
    return safetensors.torch.save(tensors)


def encode(header: Header, body: bytes = b"") -> bytes:
    """Return the message with a header and a body."""
    head = header.model_dump_json().encode()
    return b"".join((MAGIC, len(head).to_bytes(4, "big"), head, body))


def decode(message: bytes, kind: type[AnyHeader]) -> tuple[AnyHeader, list[Model]]:
    """Return a message's header, of this kind, and its models."""
    return _read(message, TypeAdapter(kind))


def body_of(message: bytes) -> bytes:
    """Return a message's packed models."""
    return _cut(message)[1]


def decode_reply(message: bytes, kind: type[AnyHeader]) -> tuple[AnyHeader | Refusal, list[Model]]:
    """Return a reply's header, of this kind or a refusal, and its models."""
    either: Any = Annotated[kind | Refusal, Field(discriminator="kind")]
    return _read(message, TypeAdapter(either))


def most_bytes(form: Form, models: int = 1) -> int:
    """Return the largest number of bytes of a message with this many models of this form."""
    layout = json.dumps({f"{models}/{name}": list(shape) for name, (shape, _) in form.items()})
    tensors = sum(shape.numel() * dtype.itemsize for shape, dtype in form.values())
    # Besides name and shape, safetensors writes a tensor's type and two positions: less than 128 bytes.
    return MOST_HEADER_BYTES + models * (tensors + len(layout) + 128 * len(form)) + 128


def _read(message: bytes, adapter: TypeAdapter[Any]) -> tuple[Any, list[Model]]:
    head, body = _cut(message)
    try:
        return adapter.validate_json(head), _unpack(body)
    except Exception as error:  # the readers of JSON and safetensors may raise anything
        raise Unreadable(type(error).__name__) from None


def _cut(message: bytes) -> tuple[bytes, bytes]:
    start = len(MAGIC) + 4
    size = int.from_bytes(message[len(MAGIC) : start], "big")
    if message[: len(MAGIC)] != MAGIC or size > MOST_HEADER_BYTES or len(message) < start + size:
        raise Unreadable("no whole header")
    return message[start : start + size], message[start + size :]


def _unpack(body: bytes) -> list[Model]:
    """Return a body's models, which must be numbered from 0 without gaps."""
    models: dict[int, Model] = {}
    tensors: Mapping[str, torch.Tensor] = safetensors.torch.load(body) if body else {}
    for key, tensor in tensors.items():
        number, _, name = key.partition("/")
        models.setdefault(int(number), {})[name] = tensor
    return [models[number] for number in range(len(models))]
