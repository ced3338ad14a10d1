"""The order in which a cohort's models are summed: a tree, whose subtrees may be summed anywhere."""

from collections.abc import Callable

from atoll.aggregation.mean import Sum
from atoll.local.models import Model

LEAF = 16  # clients whose models are summed one after the other; a cohort of no more has no other order


class SumTree:
    """The weighted sum of a cohort's models, given in the order of its clients.

    Each run of `LEAF` clients is a leaf, summed one after the other. Two leaves are added to one node, two such nodes
    to the next, and what is left over at the end joins from the right. The tree depends on places in the cohort alone,
    not on who trained whom. It holds one sum for each level.
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[int, Sum]] = []  # the places below each, falling, and its sum
        self._leaf, self._places = Sum(), 0  # the leaf that is not full, and its places so far

    def add(self, weight: float, model: Model | None) -> None:
        """Add the next client's model; None if its result does not count."""
        if model is not None:
            self._leaf.add(weight, model)
        self._places += 1
        if self._places == LEAF:
            self._close_leaf()

    def join(self, span: int, total: Sum) -> None:
        """Add the sum of the subtree that begins at the next place, and has `span` places unless the cohort ends."""
        while self._nodes and self._nodes[-1][0] == span:
            _, left = self._nodes.pop()
            left.join(total)
            span, total = 2 * span, left
        self._nodes.append((span, total))

    def total(self) -> Sum:
        """Return the sum of all."""
        if self._places:
            self._close_leaf()
        total = Sum()
        while self._nodes:
            _, left = self._nodes.pop()
            left.join(total)
            total = left
        return total

    def _close_leaf(self) -> None:
        leaf, self._leaf, self._places = self._leaf, Sum(), 0
        self.join(LEAF, leaf)


def subtree_at(place: int, clients: int, fits: Callable[[int], bool]) -> int:
    """Return the places of the largest subtree that begins here and fits, 0 if none does or one client is left.

    The cohort's last subtree may have fewer clients than places.
    """
    span, wider = 0, LEAF if clients - place > 1 else 0
    while wider and place % wider == 0 and place + span < clients and fits(wider):
        span, wider = wider, 2 * wider
    return span
