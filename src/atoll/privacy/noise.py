"""Where noise comes from: the seed, to repeat a simulation, or the system, to hide."""

import os
from collections.abc import Callable
from functools import partial

import numpy as np

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


def from_system(purpose: str, *key: int) -> Draw:
    """Return noise that nobody can draw again, of the system's own random bytes (`os.urandom`)."""
    return _normal


def _normal(count: int) -> Floats:
    """Return standard normal numbers by Box and Muller's method, two from two uniform ones of 53 random bits."""
    pairs = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64) >> np.uint64(11)
    uniform = (bits + 0.5) * 2.0**-53  # never 0, whose logarithm is not finite
    lengths, angles = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    return np.concatenate([lengths * np.cos(angles), lengths * np.sin(angles)])[:count]
