"""A node's side of one secure sum (Bonawitz et al. 2017, against a server that may deviate from the protocol).

In each step a node answers once. It adds two kinds of masks: one shared with each other node, which cancel in the sum,
and its own. The others reveal shares either of its own mask, if its numbers have arrived, or of the key of its shared
masks, if they have not; both together would reveal its numbers. So they first agree on which numbers have arrived.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from atoll.secure.crypto import (
    Forged,
    Key,
    Numbers,
    agree,
    commit,
    derive,
    is_signed,
    make_pair,
    mask,
    seal,
    sign,
    unseal,
)
from atoll.secure.field import BYTES, split
from atoll.secure.roster import Instance, Keys, NotSummed, Roster, threshold_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

_FORGOTTEN = b"", b""


@dataclass(frozen=True, eq=False)
class Identity:
    """A node's identity toward other nodes.

    Attributes:
        peers: the public keys of all nodes including its own, which its owner did not get from the server.
    """

    name: str
    key: "EllipticCurvePrivateKey"
    peers: Mapping[str, "EllipticCurvePublicKey"]


@dataclass(frozen=True)
class Revealed:
    """The shares that a node reveals: one for each node including itself, of either kind.

    Attributes:
        own: shares of the secrets of nodes' own masks, for nodes whose numbers have arrived.
        others: shares of the keys of nodes' shared masks, for nodes whose numbers have not.
    """

    own: Mapping[str, int]
    others: Mapping[str, int]


class Participant:
    """A node in a secure sum: `advertise`, `deal`, `take`, `mask`, `sign_survivors`, `reveal`, each once, in order."""

    def __init__(self, identity: Identity, instance: Instance, threshold_share: float, least_nodes: int) -> None:
        """Take part in this sum if at least `least_nodes` do and this share of them must answer in each step."""
        self.instance = instance
        self._identity = identity
        self._threshold_share, self._least = threshold_share, least_nodes
        self._sealing, self._masking, self._secret = make_pair(), make_pair(), os.urandom(32)
        self._next, self._lock = "advertise", Lock()
        self._roster = Roster(instance, 0, ())
        self._held: dict[str, tuple[int, int]] = {}  # each node's shares of its masking key and its secret
        self._survivors: tuple[str, ...] = ()

    def advertise(self) -> Keys:
        """Return signed keys for this sum alone."""
        with self._step("advertise", then="deal"):
            keys = Keys(self._identity.name, self._sealing[1], self._masking[1], commit(self._secret))
            return replace(keys, signature=sign(self._identity.key, keys.text(self.instance)))

    def deal(self, keys: Collection[Keys], threshold: int) -> dict[str, bytes]:
        """Return shares of both secrets for each other node, sealed."""
        with self._step("deal", then="take"):
            roster = self._roster = self._checked(keys, threshold)
            of_keys, of_secrets = (
                split(secret, threshold, len(roster.keys)) for secret in (self._masking[0], self._secret)
            )
            shares = dict(zip(roster.places, zip(of_keys, of_secrets, strict=True), strict=True))
            self._held = {self._identity.name: shares.pop(self._identity.name)}
            return {name: self._sealed(roster, name, each) for name, each in shares.items()}

    def take(self, dealt: Mapping[str, bytes]) -> None:
        """Take the shares that others have dealt to this node; nodes whose shares are missing are out of the sum."""
        with self._step("take", then="mask") as roster:
            roster.require({*dealt, self._identity.name}, "dealt shares", roster.by_name)
            for name, sealed in dealt.items():
                if name != self._identity.name:
                    self._held[name] = self._unsealed(roster, name, sealed)

    def mask(self, numbers: Numbers) -> Numbers:
        """Return the numbers with all masks added, modulo 2^64, [numbers]."""
        with self._step("mask", then="sign_survivors") as roster:
            me, count = self._identity.name, len(numbers)
            total = numbers + mask(own_mask_key(roster, me, self._secret), count)
            for name in self._held.keys() - {me}:
                total += pair_mask(roster, me, name, self._masking[0], roster.by_name[name].masking, count)
            return total

    def sign_survivors(self, survivors: Collection[str]) -> bytes:
        """Return a signature of the list of survivors, which must be the same for all nodes."""
        with self._step("sign_survivors", then="reveal") as roster:
            roster.require(set(survivors), "sent masked numbers", self._held)
            if self._identity.name not in survivors:
                raise NotSummed("wrong_keys", "this node is not among the survivors, so it is out of the sum")
            self._survivors = tuple(sorted(survivors))
            return sign(self._identity.key, roster.survivors_text(self._survivors))

    def reveal(self, signatures: Mapping[str, bytes]) -> Revealed:
        """Return a share of one secret of each node; the signed survivors determine which."""
        with self._step("reveal", then="") as roster:
            roster.require(signatures, "agree on whose numbers have come", self._survivors)
            text = roster.survivors_text(self._survivors)
            for name, signature in signatures.items():
                if not is_signed(self._identity.peers[name], signature, text):
                    raise NotSummed("wrong_keys", f"node {name!r} has signed another list of survivors")
            own = {name: shares[1] for name, shares in self._held.items() if name in self._survivors}
            others = {name: shares[0] for name, shares in self._held.items() if name not in self._survivors}
            self._forget()
            return Revealed(own, others)

    @contextmanager
    def _step(self, step: str, then: str) -> Iterator[Roster]:
        """Take a step if it is the next one; a failed step is the last."""
        with self._lock:
            if self._next != step:
                raise NotSummed("replayed", f"asked to {step}, but the next step of this sum is {self._next or 'none'}")
            self._next = ""
        try:
            yield self._roster
        except BaseException:
            self._forget()
            raise
        self._next = then

    def _forget(self) -> None:
        self._held, self._sealing, self._masking, self._secret = {}, _FORGOTTEN, _FORGOTTEN, b""

    def _checked(self, keys: Collection[Keys], threshold: int) -> Roster:
        roster = Roster(self.instance, threshold, tuple(sorted(keys, key=lambda each: each.name)))
        nodes = len(roster.by_name)
        if nodes < max(self._least, 2):
            raise NotSummed("too_few", f"{nodes} nodes in a sum, but secure.least_nodes = {self._least}")
        if not threshold_of(self._threshold_share, nodes) <= threshold <= nodes:
            raise NotSummed("too_few", f"a threshold of {threshold} of {nodes} nodes, which secure.threshold forbids")
        mine = roster.by_name.get(self._identity.name)
        if nodes != len(keys) or mine is None or (mine.sealing, mine.masking) != (self._sealing[1], self._masking[1]):
            raise NotSummed("wrong_keys", "this node's keys differ from those it has made, or a node is repeated")
        for each in roster.keys:
            each.check(self.instance, self._identity.peers)
        return roster

    def _sealing_key(self, roster: Roster, sender: str, receiver: str) -> Key:
        other = receiver if sender == self._identity.name else sender
        try:
            return agree(self._sealing[0], roster.by_name[other].sealing, roster.text("seal", sender, receiver))
        except Forged:
            raise NotSummed("wrong_keys", f"the key of node {other!r} is invalid") from None

    def _sealed(self, roster: Roster, name: str, shares: tuple[int, int]) -> bytes:
        text = b"".join(share.to_bytes(BYTES) for share in shares)
        return seal(self._sealing_key(roster, self._identity.name, name), text, roster.context)

    def _unsealed(self, roster: Roster, name: str, sealed: bytes) -> tuple[int, int]:
        try:
            text = unseal(self._sealing_key(roster, name, self._identity.name), sealed, roster.context)
        except Forged:
            raise NotSummed("wrong_keys", f"node {name!r} has not sealed its shares for this sum", name) from None
        if len(text) != 2 * BYTES:
            raise NotSummed("wrong_keys", f"the shares of node {name!r} are malformed", name)
        return int.from_bytes(text[:BYTES]), int.from_bytes(text[BYTES:])


def own_mask_key(roster: Roster, name: str, secret: bytes) -> Key:
    """Return the key of a node's own mask."""
    return derive(secret, roster.text("own mask", name))


def pair_mask(roster: Roster, name: str, other: str, private: bytes, public: bytes, count: int) -> Numbers:
    """Return the mask that a node adds for another, the negative of what that one adds.

    It follows from the private masking key of either of the two, and the public one of the other.
    """
    try:
        numbers = mask(agree(private, public, roster.text("mask", *sorted((name, other)))), count)
    except Forged:
        raise NotSummed("wrong_keys", f"the keys of nodes {name!r} and {other!r} do not match") from None
    return numbers if name < other else np.uint64(0) - numbers
