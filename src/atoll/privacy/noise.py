"""Sources of noise: the seed, so that a simulation can be repeated, or the system's entropy, on a fleet."""

import os
from collections.abc import Callable
from functools import partial

import numpy as np

from atoll.support.arrays import Floats
from atoll.support.seeds import generator

Draw = Callable[[int], Floats]
"""Returns this many independent standard normal numbers."""

Noise = Callable[..., Draw]
"""Returns the source of draws for one purpose and key."""

_SUMMED = 4


def from_seed(seed: int) -> Noise:
    """Return reproducible noise, given by seed, purpose and key. Anyone who knows the seed can remove it."""
    return partial(_seeded, seed)


def from_system(purpose: str, *key: int) -> Draw:
    """Return noise (`Noise`) that never repeats, from the system's cryptographic generator."""
    return _unforeseen


def _seeded(seed: int, purpose: str, *key: int) -> Draw:
    return generator(seed, purpose, *key).standard_normal


def _unforeseen(count: int) -> Floats:
    """Return halved sums of four normal numbers, which reveal little through the gaps of floating-point numbers.

    Holohan and Braghin 2021, Secure Random Sampling in Differential Privacy.
    """
    return np.asarray(sum(_normal(count) for _ in range(_SUMMED)) / np.sqrt(_SUMMED))


def _normal(count: int) -> Floats:
    """Return standard normal numbers, by the Box-Muller transform of 53 bits each."""
    pairs = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs) >> np.uint64(11)
    lengths = np.sqrt(-2 * np.log((bits[0] + 1.0) * 2.0**-53))  # of (0, 1], so that no logarithm is infinite
    angles = bits[1] * (2 * np.pi * 2.0**-53)
    return np.concatenate([lengths * np.cos(angles), lengths * np.sin(angles)])[:count]
