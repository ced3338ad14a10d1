"""Who takes part in one secure sum, with the keys that they have made for it alone."""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from atoll.secure.crypto import Forged, verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

Code = Literal["replayed", "wrong_keys", "too_few"]


class NotSummed(Exception):
    """A sum that fails, or an answer that is withheld, and why."""

    def __init__(self, code: Code, told: str) -> None:
        """Say why, in a word and in a sentence."""
        super().__init__(told)
        self.code: Code = code


@dataclass(frozen=True)
class Instance:
    """One secure sum; keys, masks and signatures of one are of no use in another.

    Attributes:
        digest: of the settings that a client's work depends on.
        token: of this sum alone, hexadecimal.
        event: number of the event.
        repeat: number of the intra-cluster round within it.
        cluster: whose clients take part.
    """

    digest: str
    token: str
    event: int
    repeat: int
    cluster: int

    def text(self, purpose: str, *more: object) -> bytes:
        """Return what keys are derived for, and signatures are of."""
        own = [self.digest, self.token, self.event, self.repeat, self.cluster]
        return json.dumps(["atoll secure sum 1", purpose, *own, *more], default=bytes.hex).encode()


@dataclass(frozen=True)
class Keys:
    """What a node makes for one sum, and signs with its own key.

    Attributes:
        name: the node's.
        sealing: public key that shares for it are sealed with.
        masking: public key that its masks with others come of.
        commitment: to the secret that its own mask comes of (`crypto.commit`).
        signature: of all that, by the node's own key.
    """

    name: str
    sealing: bytes
    masking: bytes
    commitment: bytes
    signature: bytes = b""

    def text(self, instance: Instance) -> bytes:
        """Return what the signature is of."""
        return instance.text("keys", self.name, self.sealing, self.masking, self.commitment)

    def check(self, instance: Instance, known: Mapping[str, "EllipticCurvePublicKey"]) -> None:
        """Make sure that the node of this name has signed them.

        Raises:
            NotSummed: it has not, or nobody knows its key.
        """
        if self.name not in known:
            raise NotSummed("wrong_keys", f"the key of node {self.name!r} is not known here")
        try:
            verify(known[self.name], self.signature, self.text(instance))
        except Forged:
            raise NotSummed("wrong_keys", f"keys of node {self.name!r} that it has not signed for this sum") from None


@dataclass(frozen=True)
class Roster:
    """The nodes of a sum.

    Attributes:
        instance: the sum.
        threshold: how many of them must answer in each step.
        keys: theirs, by ascending name.
    """

    instance: Instance
    threshold: int
    keys: tuple[Keys, ...]

    @cached_property
    def places(self) -> dict[str, int]:
        """At which place each node's shares are, from 1."""
        return {keys.name: place for place, keys in enumerate(self.keys, start=1)}

    @cached_property
    def by_name(self) -> dict[str, Keys]:
        """Each node's keys."""
        return {keys.name: keys for keys in self.keys}

    @cached_property
    def context(self) -> bytes:
        """What stands for the roster in all that is derived, sealed or signed in it: a checksum of all of it."""
        told = ([keys.name, keys.sealing, keys.masking, keys.commitment] for keys in self.keys)
        return hashlib.sha256(self.instance.text("roster", self.threshold, *told)).digest()

    def text(self, purpose: str, *more: object) -> bytes:
        """Return what keys are derived for, and signatures are of, among these nodes."""
        return self.instance.text(purpose, self.context, *more)

    def survivors_text(self, survivors: Iterable[str]) -> bytes:
        """Return the text that nodes sign to agree on whose masked numbers have arrived."""
        return self.text("survivors", sorted(survivors))

    def require(self, names: Collection[str], did: str, still: Collection[str]) -> None:
        """Refuse too few nodes.

        Args:
            names: those that are left.
            did: what they did, as in "sent masked numbers".
            still: those that were left before.

        Raises:
            NotSummed: fewer than the threshold; or one that was not left before.
        """
        if strangers := sorted(set(names) - set(still)):
            raise NotSummed("wrong_keys", f"node {strangers[0]!r} is not in this sum")
        if len(names) < self.threshold:
            raise NotSummed("too_few", f"{len(names)} of {len(self.keys)} nodes {did}, {self.threshold} must")


def threshold_of(share: float, nodes: int) -> int:
    """Return how many of so many nodes must answer in each step: this share, rounded up, and more than half.

    >>> threshold_of(2 / 3, 2), threshold_of(2 / 3, 6), threshold_of(0.5, 6)
    (2, 4, 4)
    """
    return max(math.ceil(share * nodes - 1e-9), nodes // 2 + 1)
