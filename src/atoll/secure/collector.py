"""The server's side of one secure sum: the nodes left after each step, and finally the sum, which is all it learns."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from atoll.secure.crypto import Forged, Numbers, agree, commit, is_signed, make_pair, mask, public_of
from atoll.secure.field import TRIED, join, recover
from atoll.secure.participant import Revealed, own_mask_key, pair_mask
from atoll.secure.roster import Instance, Keys, NotSummed, Roster, threshold_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


class Collector:
    """The server in one secure sum: takes the nodes' answers, step by step.

    Each step leaves out nodes without a valid answer, and raises `NotSummed` if too few are left.

    Attributes:
        left: the nodes that have answered so far.
        false: nodes that dealt or revealed false shares, and which; a sum survives as many as it may lose.
    """

    def __init__(
        self,
        instance: Instance,
        known: "Mapping[str, EllipticCurvePublicKey]",
        threshold_share: float,
        planned: int | None = None,
    ) -> None:
        """Sum over these nodes; this share of the planned ones, known or not, must answer in each step."""
        self.instance = instance
        self._known, self.planned = known, len(known) if planned is None else planned
        self.threshold = threshold_of(threshold_share, self.planned)
        self.left: tuple[str, ...] = tuple(sorted(known))
        self.false: dict[str, str] = {}
        self._masked: Mapping[str, Numbers] = {}

    @property
    def summed(self) -> tuple[str, ...]:
        """The nodes whose masked numbers have arrived."""
        return tuple(self._masked)

    def take_keys(self, keys: Mapping[str, Keys]) -> tuple[Keys, ...]:
        """Take the nodes' keys; return those that are sent to all."""
        good = [each for name, each in keys.items() if each.name == name and self._are_good(each)]
        self.roster = Roster(self.instance, self.threshold, tuple(sorted(good, key=lambda each: each.name)))
        self._leave(self.roster.by_name, "made keys")
        return self.roster.keys

    def take_dealt(self, dealt: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, bytes]]:
        """Take the shares that nodes deal to each other; return the shares for each node that is left."""
        whole = {name: shares for name, shares in dealt.items() if {*shares, name} == self.roster.by_name.keys()}
        self._leave(whole, "dealt shares")
        return {name: {other: whole[other][name] for other in self.left if other != name} for name in self.left}

    def take_masked(self, masked: Mapping[str, Numbers]) -> tuple[str, ...]:
        """Take masked numbers; return the nodes whose numbers have arrived."""
        self._holding = self.left
        self._leave(masked, "sent masked numbers")
        self._masked = {name: masked[name] for name in self.left}
        return self.left

    def take_signatures(self, signatures: Mapping[str, bytes]) -> dict[str, bytes]:
        """Take nodes' signatures of the list of survivors; return the valid ones."""
        text = self.roster.survivors_text(self._masked)
        here = {name: each for name, each in signatures.items() if name in self.left}
        good = {name: each for name, each in here.items() if is_signed(self._known[name], each, text)}
        self._leave(good, "agree on whose numbers have arrived")
        return good

    def take_revealed(self, revealed: Mapping[str, Revealed]) -> Numbers:
        """Take the shares that nodes reveal; return the sum of the numbers that have arrived, modulo 2^64."""
        lost = [name for name in self._holding if name not in self._masked]
        wanted = set(self._masked), set(lost)
        proper = {name: each for name, each in revealed.items() if (set(each.own), set(each.others)) == wanted}
        self._leave(proper, "revealed their shares")
        total: Numbers = np.stack(list(self._masked.values())).sum(axis=0, dtype=np.uint64)
        for name in self._masked:
            total -= self._own_mask(name, {each: proper[each].own[name] for each in proper}, len(total))
        for name in lost:
            private = self._masking_key(name, {each: proper[each].others[name] for each in proper})
            for other in self._masked:
                public = self.roster.by_name[other].masking
                total -= pair_mask(self.roster, other, name, private, public, len(total))
        return total

    def _leave(self, names: Mapping[str, object], did: str) -> None:
        left = tuple(name for name in self.left if name in names)
        if len(left) < self.threshold:
            raise NotSummed("too_few", f"{len(left)} of {self.planned} nodes {did}, {self.threshold} must")
        self.left = left

    def _are_good(self, keys: Keys) -> bool:
        """Return whether keys are signed and can be agreed with; note a node that signed others."""
        try:
            keys.check(self.instance, self._known)
            private, _ = make_pair()
            for key in (keys.sealing, keys.masking):
                agree(private, key, b"")
        except NotSummed:
            return False
        except Forged:
            self.false[keys.name] = "made an invalid key"
            return False
        return True

    def _own_mask(self, name: str, shares: Mapping[str, int], count: int) -> Numbers:
        secret = self._joined(name, shares, "mask", lambda found: commit(found) == self.roster.by_name[name].commitment)
        return mask(own_mask_key(self.roster, name, secret), count)

    def _masking_key(self, name: str, shares: Mapping[str, int]) -> bytes:
        return self._joined(name, shares, "key", lambda found: public_of(found) == self.roster.by_name[name].masking)

    def _joined(self, name: str, shares: Mapping[str, int], what: str, is_secret: Callable[[bytes], bool]) -> bytes:
        """Return a node's secret, and note whose shares of it are false."""
        trusted = [other for other in shares if other not in self.false]
        at = {self.roster.places[other]: other for other in (trusted if len(trusted) >= self.threshold else shares)}
        placed = {place: shares[other] for place, other in at.items()}
        with suppress(ValueError):
            if is_secret(secret := join(placed)):
                return secret
        if (found := recover(placed, self.threshold, is_secret)) is None:
            if math.comb(len(placed), self.threshold) > TRIED or len(shares) < len(self.roster.places):
                # Then the missing true ones may have been dealt, too.
                raise NotSummed("wrong_keys", f"too many false shares of the {what} of node {name!r}")
            self.false[name] = f"dealt false shares of its {what}"
            raise NotSummed("wrong_keys", f"node {name!r} {self.false[name]}", name)
        secret, wrong = found
        for place in wrong:
            self.false.setdefault(at[place], f"revealed a false share of the {what} of node {name!r}")
        return secret
