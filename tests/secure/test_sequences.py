"""Whatever a server sends the nodes of a secure sum, in whatever order, it never gets both shares of a node."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atoll.secure.participant import Participant
from atoll.secure.roster import Keys, NotSummed
from tests.secure.nodes import identities, instance, names_of
from tests.tiers import as_more

NAMES = names_of(4)
THRESHOLD = 3
WHO = identities(NAMES)


class Server:
    """Asks nodes for any step with what it has of all of them and of another sum, right or not, and counts shares."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        works = ["bb" if rng.random() < 0.03 else "aa" for _ in NAMES]  # now and then a node is told of other work
        self.nodes = {
            name: Participant(WHO[name], instance(work=work), 2 / 3, 2) for name, work in zip(NAMES, works, strict=True)
        }
        self.keys = [Participant(WHO[name], instance(token="cc"), 2 / 3, 2).advertise() for name in NAMES]
        self.sealed: dict[str, list[dict[str, bytes]]] = defaultdict(list)  # by receiver
        self.signed: dict[str, list[bytes]] = defaultdict(list)
        self.masked: dict[str, int] = defaultdict(int)
        self.held: dict[tuple[str, str], set[str]] = defaultdict(set)  # of a node, of a kind: who gave a share away

    def some(self, values: list[Any]) -> list[Any]:
        """Return all of a list, or, one time in five, some."""
        if self.rng.random() < 0.8:
            return values
        return [value for value in values if self.rng.random() < 0.6]

    def pick(self, values: list[Any]) -> Any:
        """Return the last of a list, or, one time in twenty, any."""
        return values[-1] if self.rng.random() < 0.95 else values[self.rng.integers(len(values))]

    def advertise(self, node: Participant, name: str) -> None:
        self.keys.append(node.advertise())

    def deal(self, node: Participant, name: str) -> None:
        by_name: dict[str, list[Keys]] = defaultdict(list)
        for each in self.keys:
            by_name[each.name].append(each)
        shown = self.some([self.pick(each) for each in by_name.values()])
        if self.rng.random() < 0.05:
            shown = [replace(each, masking=self.keys[0].masking) for each in shown]
        for other, sealed in node.deal(shown, THRESHOLD if self.rng.random() < 0.95 else 2).items():
            self.sealed[other].append({name: sealed})

    def mask(self, node: Participant, name: str) -> None:
        dealt: dict[str, bytes] = {}
        for each in self.some(self.sealed[name]):
            dealt |= each
        node.take(dealt)
        node.mask(np.zeros(2, np.uint64))
        self.masked[name] += 1

    def sign(self, node: Participant, name: str) -> None:
        signature = node.sign_survivors(self.some(list(NAMES)))
        self.signed[name].append(signature)

    def reveal(self, node: Participant, name: str) -> None:
        given = node.reveal({other: self.pick(each) for other, each in self.signed.items() if self.rng.random() < 0.9})
        for kind in ("own", "others"):
            for other in getattr(given, kind):
                self.held[other, kind].add(name)


STEPS: tuple[Callable[[Server, Participant, str], None], ...] = (
    Server.advertise,
    Server.deal,
    Server.mask,
    Server.sign,
    Server.reveal,
)


@pytest.mark.parametrize(
    "sequences", [50, as_more(500), pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_no_server_gets_both_shares_of_a_node(sequences: int) -> None:
    """At most one kind of share of each node is given away by as many as can make a secret of them."""
    ended, known = 0, 0
    for seed in range(sequences):
        server = Server(np.random.default_rng([seed, sequences]))
        for step in STEPS:  # in order for most, with other ones in between
            for name in server.rng.permutation(NAMES).tolist():
                ask = step if server.rng.random() < 0.97 else STEPS[server.rng.integers(len(STEPS))]
                with suppress(NotSummed):
                    ask(server, server.nodes[name], name)
        for name in NAMES:
            kinds = [len(server.held[name, kind]) >= THRESHOLD for kind in ("own", "others")]
            assert sum(kinds) <= 1, seed
            assert server.masked[name] <= 1
            known += sum(kinds)
        ended += any(server.held.values())
    assert ended > sequences / 20  # else this shows nothing
    assert known > sequences / 20
