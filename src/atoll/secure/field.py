"""Secret sharing: any `threshold` shares recover the secret, fewer reveal nothing (Shamir 1979)."""

import secrets
from collections.abc import Mapping
from functools import lru_cache

PRIME = 2**256 + 297
"""The smallest prime above all 32-byte secrets."""

BYTES = 33  # of a share


def split(secret: bytes, threshold: int, count: int) -> list[int]:
    """Return the shares of a 32-byte secret: the values of a random polynomial at 1 to `count`.

    >>> len(split(bytes(32), threshold=2, count=3))
    3
    """
    if len(secret) != 32 or not 1 <= threshold <= count:
        raise ValueError("a secret has 32 bytes, and a threshold from 1 to the number of shares")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(coefficients, place) for place in range(1, count + 1)]


def join(shares: Mapping[int, int]) -> bytes:
    """Return the secret from at least the threshold of shares, by their places, with Lagrange's formula.

    Raises:
        ValueError: the result is not a secret, so some shares are false.

    >>> join(dict(enumerate(split(b"s" * 32, 2, 3)[1:], start=2))) == b"s" * 32
    True
    """
    secret = sum(share * weight for share, weight in zip(shares.values(), _weights(tuple(shares)), strict=True)) % PRIME
    if secret >= 2**256:
        raise ValueError("false shares")
    return secret.to_bytes(32)


@lru_cache(maxsize=16)  # a sum's secrets are all joined from shares at the same places
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weights of shares at these places in a polynomial's value at 0."""
    weights = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        weights.append(above * pow(below, -1, PRIME))
    return tuple(weights)


def _value(coefficients: list[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value
