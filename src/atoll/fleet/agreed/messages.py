"""What server and nodes send each other: a JSON header and safetensors. Neither can carry code.

A message is 4 bytes ``ATL1``, the header's length in 4 bytes (most significant first), the header, and the body: the
tensors of model i under ``i/name``, or nothing.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from atoll.fleet.agreed.terms import Terms
from atoll.local.models import Form, Model
from atoll.support.limits import LARGEST

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
    "too_few",
    "out_of_range",
]


class Unreadable(ValueError):
    """What has come is no message of the kind that was waited for."""


class Refused(Exception):
    """A node does not do what it was asked."""

    def __init__(self, code: RefusalCode, told: str = "") -> None:
        """Say why, in one of the words that the server knows, and to the node's owner in others."""
        super().__init__(told or code)
        self.code: RefusalCode = code


class Header(BaseModel):
    """What stands before the tensors; unknown, missing or ill-formed entries are refused, NaN too."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DescribeRequest(Header):
    """Asks what a node holds.

    Attributes:
        settings_digest: of the settings that a client's work depends on (`agreement.digest_of`).
        nonce: of this call alone; the reply repeats it.
        settings: what they are (`terms.announce`), for nodes whose owners let the server choose some.
    """

    kind: Literal["describe"] = "describe"
    settings_digest: Token
    nonce: Token
    settings: Terms = {}


class TrainRequest(Header):
    """Asks a node for a training of one of its clients; the body is the start model.

    Attributes:
        settings_digest: of the settings that a client's work depends on (`agreement.digest_of`).
        nonce: of this call alone; the reply repeats it.
        event: number of the event.
        drawn_as: what random numbers are keyed with in the event's place; differs in live asynchronous runs only.
        round: the event's round.
        repeat: number of the intra-cluster round within the event.
        cluster: the cohort's cluster.
        client: who is to train.
        state: the task whose version of what the client keeps it begins from; None: it has none yet.
        resumable: tasks whose versions are named by checkpoints that the run may yet go on from.
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
    """Asks a node for the losses of all models in the body on the data of one of its clients."""

    kind: Literal["losses"] = "losses"
    settings_digest: Token
    nonce: Token
    round: Count
    client: Count


class ClientReport(Header):
    """What a node's owner lets the server know of a client.

    Attributes:
        client: its number.
        samples: how many it holds.
        class_counts: samples of each class; None: not reported.
        epsilon: with which `private.respond` made them; None: they are exact.
        utc_offset: hours; None: not reported.
        slots: of the day in which it can train; None: not reported.
        seconds_per_sample: measured so far; None: it has not trained yet.
    """

    client: Count
    samples: Annotated[int, Field(ge=1, le=LARGEST)]
    class_counts: tuple[Count, ...] | None = None
    epsilon: Annotated[float, Field(gt=0)] | None = None
    utc_offset: Annotated[float, Field(ge=-24, le=24)] | None = None
    slots: tuple[Annotated[int, Field(ge=0, lt=86_400)], ...] | None = None
    seconds_per_sample: Seconds | None = None


class DescribeReply(Header):
    """What a node holds.

    Attributes:
        nonce: that of the request.
        utc: the node's clock, seconds since 1970.
        versions: of the packages that bits depend on.
        clients: what it says of each of its clients.
    """

    kind: Literal["described"] = "described"
    nonce: Token
    utc: float
    versions: Annotated[dict[Word, Word], Field(max_length=20)]
    clients: Annotated[tuple[ClientReport, ...], Field(min_length=1)]


class TrainReply(Header):
    """What a client trained; the body is its model.

    Attributes:
        nonce: that of the request.
        event: that of the request.
        repeat: that of the request.
        client: who trained.
        samples: how many it holds.
        passed: samples of all its steps' batches together.
        seconds: its training took on the node.
        loss: mean training loss; None if it is not finite.
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
    """The mean loss of each model on a client's data; None where it is not finite."""

    kind: Literal["measured"] = "measured"
    nonce: Token
    client: Count
    losses: tuple[float | None, ...]


class Refusal(Header):
    """Why a node does not do what it was asked; it holds no text of its own."""

    kind: Literal["refused"] = "refused"
    code: RefusalCode


AnyHeader = TypeVar("AnyHeader", bound=Header)


def pack(models: Sequence[Model]) -> bytes:
    """Return the body that holds these models, wherever they are."""
    tensors = {
        # Each its own memory: safetensors refuses tensors that share some, as tied layers may.
        f"{number}/{name}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for number, model in enumerate(models)
        for name, tensor in model.items()
    }
    return safetensors.torch.save(tensors)


def encode(header: Header, body: bytes = b"") -> bytes:
    """Return the message of a header and a body."""
    head = header.model_dump_json().encode()
    return b"".join((MAGIC, len(head).to_bytes(4, "big"), head, body))


def decode(message: bytes, kind: type[AnyHeader]) -> tuple[AnyHeader, list[Model]]:
    """Return the header, of this kind, and the models of a message.

    Raises:
        Unreadable: whatever else the bytes are; nothing else is ever raised for them.
    """
    head, models = _read(message, TypeAdapter(kind))
    return head, models


def decode_reply(message: bytes, kind: type[AnyHeader]) -> tuple[AnyHeader | Refusal, list[Model]]:
    """Return the header, of this kind or a refusal, and the models of a reply.

    Raises:
        Unreadable: as `decode`.
    """
    either: Any = Annotated[kind | Refusal, Field(discriminator="kind")]
    head, models = _read(message, TypeAdapter(either))
    return head, models


def most_bytes(form: Form, models: int = 1) -> int:
    """Return how many bytes a message with so many models of this form has at most."""
    layout = json.dumps({f"{models}/{name}": list(shape) for name, (shape, _) in form.items()})
    tensors = sum(shape.numel() * dtype.itemsize for shape, dtype in form.values())
    # Beside its name and shape, safetensors writes a tensor's type and two positions: less than 128 bytes.
    return MOST_HEADER_BYTES + models * (tensors + len(layout) + 128 * len(form)) + 128


def _read(message: bytes, adapter: TypeAdapter[Any]) -> tuple[Any, list[Model]]:
    head, body = _cut(message)
    try:
        return adapter.validate_json(head), _unpack(body)
    except Exception as error:  # whatever bytes may do to the readers of JSON and safetensors
        raise Unreadable(type(error).__name__) from None


def _cut(message: bytes) -> tuple[bytes, bytes]:
    start = len(MAGIC) + 4
    size = int.from_bytes(message[len(MAGIC) : start], "big")
    if message[: len(MAGIC)] != MAGIC or size > MOST_HEADER_BYTES or len(message) < start + size:
        raise Unreadable("no whole header")
    return message[start : start + size], message[start + size :]


def _unpack(body: bytes) -> list[Model]:
    """Return the models of a body, which must be numbered from 0 without a gap."""
    models: dict[int, Model] = {}
    tensors: Mapping[str, torch.Tensor] = safetensors.torch.load(body) if body else {}
    for key, tensor in tensors.items():
        number, _, name = key.partition("/")
        models.setdefault(int(number), {})[name] = tensor
    return [models[number] for number in range(len(models))]
