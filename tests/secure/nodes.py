"""Nodes with keys of their own, and one secure sum of them in this process, of which some are lost on the way."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from atoll.fleet.folder.certificates import load_public_key, make_key_pair
from atoll.secure.collector import Collector
from atoll.secure.crypto import Numbers
from atoll.secure.participant import Identity, Participant
from atoll.secure.roster import Instance

STEPS = ("advertise", "deal", "mask", "sign_survivors", "reveal")
_KEYS: dict[str, tuple[Any, str]] = {}


def instance(**changes: Any) -> Instance:
    return replace(Instance("d1", "aa", event=3, repeat=1, cluster=2, work="bb"), **changes)


def public_lines(names: Iterable[str]) -> dict[str, str]:
    """Return the public key of each node; the same name has the same keys in all tests."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    for name in names:
        if name not in _KEYS:
            private, line = make_key_pair(name)
            _KEYS[name] = load_ssh_private_key(private, None), line
    return {name: _KEYS[name][1] for name in names}


def identities(names: Iterable[str]) -> dict[str, Identity]:
    """Return who these nodes are to each other."""
    lines = public_lines(list(names))
    known = {name: load_public_key(line) for name, line in lines.items()}
    return {name: Identity(name, _KEYS[name][0], known) for name in lines}


def names_of(count: int) -> list[str]:
    return [f"node-{number}" for number in range(count)]


def drawn(count: int, size: int, seed: int = 0) -> dict[str, Numbers]:
    """Return each node's numbers, of both signs."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-(2**40), 2**40, size).view(np.uint64) for name in names_of(count)}


class Meeting:
    """A sum of nodes in this process: who is lost before which step, and what each is told, may be changed."""

    def __init__(
        self,
        numbers: Mapping[str, Numbers],
        lost: Mapping[str, Collection[str]] | None = None,
        share: float = 2 / 3,
        least: int = 2,
    ) -> None:
        """Meet; `lost` are the nodes that answer no more from a step on."""
        self.numbers, self.lost = dict(numbers), lost or {}
        who = identities(numbers)
        self.nodes = {name: Participant(each, instance(), share, least) for name, each in who.items()}
        self.collector = Collector(instance(), who[next(iter(who))].peers, share)
        self.masked: dict[str, Numbers] = {}

    def left(self, step: str) -> list[str]:
        """Return the nodes that answer in a step."""
        gone = {name for each in STEPS[: STEPS.index(step) + 1] for name in self.lost.get(each, ())}
        return [name for name in self.collector.left if name not in gone]

    def answers(self, step: str, say: Callable[[str], Any]) -> dict[str, Any]:
        return {name: say(name) for name in self.left(step)}

    def carry_out(self) -> Numbers:
        """Return the sum."""
        nodes, collector = self.nodes, self.collector
        keys = collector.take_keys(self.answers("advertise", lambda name: nodes[name].advertise()))
        routed = collector.take_dealt(self.answers("deal", lambda name: nodes[name].deal(keys, collector.threshold)))

        def mask(name: str) -> Numbers:
            nodes[name].take(routed[name])
            return nodes[name].mask(self.numbers[name])

        self.masked = self.answers("mask", mask)
        survivors = collector.take_masked(self.masked)
        signed = collector.take_signatures(
            self.answers("sign_survivors", lambda name: nodes[name].sign_survivors(survivors))
        )
        return collector.take_revealed(self.answers("reveal", lambda name: nodes[name].reveal(signed)))


def plain(numbers: Mapping[str, Numbers], names: Iterable[str]) -> Numbers:
    """Return the sum of these nodes' numbers, modulo 2^64."""
    return np.sum([numbers[name] for name in names], axis=0, dtype=np.uint64)
