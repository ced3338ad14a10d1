"""Where noise comes from: the seed, so that a simulation can be repeated."""

from collections.abc import Callable
from functools import partial

from atoll.support.arrays import Floats
from atoll.support.seeds import generator

Draw = Callable[[int], Floats]
"""Returns so many independent standard normal numbers."""

Noise = Callable[..., Draw]
"""Returns what draws for one purpose and key."""


def from_seed(seed: int) -> Noise:
    """Return noise that repeats: the same for the same seed, purpose and key. Who knows the seed can take it away."""
    return partial(_seeded, seed)


def _seeded(seed: int, purpose: str, *key: int) -> Draw:
    return generator(seed, purpose, *key).standard_normal
