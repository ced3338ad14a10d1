"""Messages of a secure sum: a request and a reply for each of its five steps."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from atoll.fleet.agreed.messages import Count, Header, Seconds, Token
from atoll.secure.roster import Instance, Keys
from atoll.support.limits import LARGEST

Name = Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]


def _read_hex(value: bytes | str) -> bytes:
    if isinstance(value, bytes):
        return value
    if (found := bytes.fromhex(value)).hex() != value:
        raise ValueError("must be lower-case hexadecimal digits without spaces")
    return found


Bytes = Annotated[bytes, Field(min_length=1, max_length=200), BeforeValidator(_read_hex), PlainSerializer(bytes.hex)]
"""A few bytes, which messages hold in hexadecimal."""
ByNode = dict[Name, Bytes]


def work_of(start: bytes, drawn_as: int, round_: int, clients: Mapping[str, Sequence[int]]) -> str:
    """Return the digest of a sum's work, with which nodes sign their keys: so all mask for the same."""
    told = json.dumps([drawn_as, round_, sorted((name, list(own)) for name, own in clients.items())])
    return sha256(sha256(start).digest() + told.encode()).hexdigest()


class SumRequest(Header):
    """Asks a node for a step of a secure sum, the `Instance` with these fields."""

    settings_digest: Token
    nonce: Token
    token: Token
    event: Count
    repeat: Count
    cluster: Count
    work: Token

    @property
    def instance(self) -> Instance:
        """The sum."""
        return Instance(self.settings_digest, self.token, self.event, self.repeat, self.cluster, self.work)


class KeysRequest(SumRequest):
    """Asks for keys, which are used for this sum only."""

    kind: Literal["sum-keys"] = "sum-keys"


class SignedKeys(Header):
    """A node's keys (`secure.roster.Keys`)."""

    name: Name
    sealing: Bytes
    masking: Bytes
    commitment: Bytes
    signature: Bytes

    @classmethod
    def of(cls, keys: Keys) -> "SignedKeys":
        """Return keys in the form in which they are sent."""
        return cls(**vars(keys))

    @property
    def keys(self) -> Keys:
        """The keys."""
        return Keys(**vars(self))


class SharesRequest(SumRequest):
    """Sends all nodes' keys, and asks for a share for each other node."""

    kind: Literal["sum-shares"] = "sum-shares"
    keys: tuple[SignedKeys, ...]
    threshold: Count


class MaskedRequest(SumRequest):
    """Sends shares, and asks the node to train its clients and mask their sum; the body is the start model.

    Attributes:
        clients: the clients of each node in the sum, which trains its own.
        shares: shares that other nodes dealt to this one.
    """

    kind: Literal["sum-masked"] = "sum-masked"
    drawn_as: Count
    round: Count
    clients: dict[Name, Annotated[tuple[Count, ...], Field(min_length=1)]]
    shares: ByNode


class SurvivorsRequest(SumRequest):
    """Sends the list of nodes whose masked numbers arrived, and asks for a signature of it."""

    kind: Literal["sum-survivors"] = "sum-survivors"
    survivors: tuple[Name, ...]


class UnmaskRequest(SumRequest):
    """Sends these signatures, and asks for one share of each node."""

    kind: Literal["sum-unmask"] = "sum-unmask"
    signatures: ByNode


class SumReply(Header):
    """A node's reply in a step."""

    nonce: Token


class KeysReply(SumReply):
    """A node's keys."""

    kind: Literal["summed-keys"] = "summed-keys"
    keys: SignedKeys


class SharesReply(SumReply):
    """A node's sealed shares for each other node."""

    kind: Literal["summed-shares"] = "summed-shares"
    shares: ByNode


class WorkDone(Header):
    """A client's work, as in `messages.TrainReply`."""

    client: Count
    samples: Annotated[int, Field(ge=1, le=LARGEST)]
    passed: Annotated[int, Field(ge=1, le=LARGEST)]
    seconds: Seconds


class MaskedReply(SumReply):
    """The work of a node's clients; the body is the masked sum of their updates as integers."""

    kind: Literal["summed-masked"] = "summed-masked"
    work: tuple[WorkDone, ...]


class SurvivorsReply(SumReply):
    """A node's signature of the list of survivors."""

    kind: Literal["summed-survivors"] = "summed-survivors"
    signature: Bytes


class UnmaskReply(SumReply):
    """A node's shares (`secure.participant.Revealed`)."""

    kind: Literal["summed-unmask"] = "summed-unmask"
    own: ByNode
    others: ByNode
