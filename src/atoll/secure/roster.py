"""The participants of one secure sum, with the keys that they have made for it alone."""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from atoll.secure.crypto import is_signed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

Code = Literal["replayed", "wrong_keys", "wrong_work", "too_few"]


class NotSummed(Exception):
    """A sum that fails, or an answer that is withheld, and why."""

    def __init__(self, code: Code, told: str, about: str | None = None) -> None:
        """Give the reason as a code and as a sentence, and the node at fault, if it is known."""
        super().__init__(told)
        self.code: Code = code
        self.about = about


@dataclass(frozen=True)
class Instance:
    """One secure sum, whose keys, masks and signatures are useless in another.

    Attributes:
        work: digest of the start model, the round and the clients, which must be the same for all nodes.
    """

    digest: str
    token: str
    event: int
    repeat: int
    cluster: int
    work: str

    def text(self, purpose: str, *more: object) -> bytes:
        """Return the text to derive keys for, or to sign."""
        own = [self.digest, self.token, self.event, self.repeat, self.cluster, self.work]
        return json.dumps(["atoll secure sum 2", purpose, *own, *more], default=bytes.hex).encode()


@dataclass(frozen=True)
class Keys:
    """A node's keys for one sum, signed with its own key.

    Attributes:
        sealing: public key for sealing shares for it.
        masking: public key of the masks that it shares with others.
        commitment: commitment to the secret of its own mask (`crypto.commit`).
        signature: of all the above, with the node's own key.
    """

    name: str
    sealing: bytes
    masking: bytes
    commitment: bytes
    signature: bytes = b""

    def text(self, instance: Instance) -> bytes:
        """Return the text to sign."""
        return instance.text("keys", self.name, self.sealing, self.masking, self.commitment)

    def check(self, instance: Instance, known: Mapping[str, "EllipticCurvePublicKey"]) -> None:
        """Verify that the node of this name has signed them."""
        if self.name not in known:
            raise NotSummed("wrong_keys", f"the key of node {self.name!r} is not known here")
        if not is_signed(known[self.name], self.signature, self.text(instance)):
            raise NotSummed("wrong_keys", f"node {self.name!r} has not signed its keys for this sum")


@dataclass(frozen=True)
class Roster:
    """The nodes of a sum; their keys are in the order of their names."""

    instance: Instance
    threshold: int
    keys: tuple[Keys, ...]

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each node's shares, from 1."""
        return {keys.name: place for place, keys in enumerate(self.keys, start=1)}

    @cached_property
    def by_name(self) -> dict[str, Keys]:
        """Each node's keys."""
        return {keys.name: keys for keys in self.keys}

    @cached_property
    def context(self) -> bytes:
        """A checksum of the whole roster, bound to everything that is derived, sealed or signed with it."""
        told = ([keys.name, keys.sealing, keys.masking, keys.commitment] for keys in self.keys)
        return hashlib.sha256(self.instance.text("roster", self.threshold, *told)).digest()

    def text(self, purpose: str, *more: object) -> bytes:
        """Return the text to derive keys for, or to sign, among these nodes."""
        return self.instance.text(purpose, self.context, *more)

    def survivors_text(self, survivors: Iterable[str]) -> bytes:
        """Return the text that nodes sign to agree on whose masked numbers have arrived."""
        return self.text("survivors", sorted(survivors))

    def require(self, names: Collection[str], did: str, still: Collection[str]) -> None:
        """Require enough `names`, which `did` something, all of those that were `still` left before."""
        if strangers := sorted(set(names) - set(still)):
            raise NotSummed("wrong_keys", f"node {strangers[0]!r} is not in this sum")
        if len(names) < self.threshold:
            raise NotSummed("too_few", f"{len(names)} of {len(self.keys)} nodes {did}, {self.threshold} must")


def threshold_of(share: float, nodes: int) -> int:
    """Return how many of these nodes must answer in each step: this share, rounded up, and more than half."""
    return max(math.ceil(share * nodes - 1e-9), nodes // 2 + 1)
