"""NumPy's generators for many keys at once, to the bit `generator` of each: seeding takes longer than drawing."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.support.arrays import Ids

MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645  # of PCG64

Words = npt.NDArray[np.uint32]


def generators(seed: int, purpose: str, keys: Ids) -> Iterator[np.random.Generator]:
    """Yield ``generator(seed, purpose, *key)`` for each key [keys, numbers below 2^32]: one, begun anew each time."""
    own = np.random.PCG64()
    draws = np.random.Generator(own)
    words = np.ascontiguousarray(seed_words(seed, purpose, keys).T).astype("<u4").view("<u8")
    for low, high, low_half, high_half in words.tolist():
        increment = 2 * (low_half + (high_half << 64)) + 1 & (1 << 128) - 1
        state = (low + (high << 64) + increment) * MULTIPLIER + increment & (1 << 128) - 1
        both: Any = {"state": state, "inc": increment}
        own.state = {"bit_generator": "PCG64", "state": both, "has_uint32": 0, "uinteger": 0}
        yield draws


def seed_words(seed: int, purpose: str, keys: Ids) -> Words:
    """Return what `SeedSequence` gives PCG64 for each key: state and increment, the lowest words first, [8, keys]."""
    same = [word for number in (seed, int.from_bytes(purpose.encode(), "little")) for word in _words(number)]
    entropy = [np.full(len(keys), word, np.uint32) for word in same] + list(keys.T.astype(np.uint32))
    entropy += [np.zeros(len(keys), np.uint32)] * (4 - len(entropy))
    constants = _constants(0x43B0D7E5, 0x931E8875, 1 + 4 * len(entropy))
    pool = _hashed(np.array(entropy[:4]), constants[:5])
    for source in range(4):
        others = [each for each in range(4) if each != source]
        pool[others] = _mixed(pool[others], _hashed(pool[source], constants[4 + 3 * source : 8 + 3 * source]))
    for place, words in enumerate(entropy[4:], 4):
        pool = _mixed(pool, _hashed(words, constants[4 * place : 4 * place + 5]))
    made = _hashed(np.concatenate([pool, pool]), _constants(0x8B51F9DD, 0x58F38DED, 9))
    return made[[2, 3, 0, 1, 6, 7, 4, 5]]


def _words(number: int) -> list[int]:
    return [number >> low & 0xFFFFFFFF for low in range(0, max(1, number.bit_length()), 32)]


@lru_cache
def _constants(first: int, factor: int, number: int) -> Words:
    return np.array([[first * pow(factor, power, 1 << 32) % (1 << 32)] for power in range(number)], np.uint32)


def _hashed(words: Words, constants: Words) -> Words:
    mixed: Words = (words ^ constants[:-1]) * constants[1:]
    return mixed ^ (mixed >> np.uint32(16))


def _mixed(ours: Words, theirs: Words) -> Words:
    mixed: Words = ours * np.uint32(0xCA01F9DD) - theirs * np.uint32(0x4973F715)
    return mixed ^ (mixed >> np.uint32(16))
