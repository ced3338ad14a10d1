"""Secret sharing: any `threshold` shares recover the secret, fewer reveal nothing (Shamir 1979)."""

import secrets
from collections.abc import Mapping
from functools import lru_cache

PRIME = 2**256 + 297
"""The least prime above all secrets of 32 bytes."""

BYTES = 33  # of a share


def split(secret: bytes, threshold: int, count: int) -> list[int]:
    """Return the shares at places 1 to `count` of a secret of 32 bytes: values of a random polynomial there.

    >>> len(split(bytes(32), threshold=2, count=3))
    3
    """
    if len(secret) != 32 or not 1 <= threshold <= count:
        raise ValueError("a secret has 32 bytes, and a threshold from 1 to the number of shares")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(coefficients, place) for place in range(1, count + 1)]


def join(shares: Mapping[int, int]) -> bytes:
    """Return the secret behind shares by their places, as many as the threshold or more, by Lagrange's formula.

    Raises:
        ValueError: what they give is no secret, so some of them are false.

    >>> join(dict(enumerate(split(b"s" * 32, 2, 3)[1:], start=2))) == b"s" * 32
    True
    """
    secret = sum(share * weight for share, weight in zip(shares.values(), _weights(tuple(shares)), strict=True)) % PRIME
    if secret >= 2**256:
        raise ValueError("false shares")
    return secret.to_bytes(32)


@lru_cache(maxsize=16)  # all secrets of a sum are joined from shares at the same places
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
