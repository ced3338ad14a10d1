"""Secret sharing: any `threshold` shares recover the secret, fewer reveal nothing (Shamir 1979)."""

import math
import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import combinations

PRIME = 2**256 + 297
"""The smallest prime above all 32-byte secrets."""

BYTES = 33  # of a share
TRIED = 5_000  # sets of shares, to find a secret among false ones


def split(secret: bytes, threshold: int, count: int) -> list[int]:
    """Return the shares of a 32-byte secret: the values of a random polynomial at 1 to `count`."""
    if len(secret) != 32 or not 1 <= threshold <= count:
        raise ValueError("a secret has 32 bytes, and a threshold from 1 to the number of shares")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(coefficients, place) for place in range(1, count + 1)]


def join(shares: Mapping[int, int]) -> bytes:
    """Return the secret from at least the threshold of shares, by their places, with Lagrange's formula.

    Raises:
        ValueError: the result is not a secret, so some shares are false.
    """
    secret = sum(share * weight for share, weight in zip(shares.values(), _weights(tuple(shares)), strict=True)) % PRIME
    if secret >= 2**256:
        raise ValueError("false shares")
    return secret.to_bytes(32)


def recover(
    shares: Mapping[int, int], threshold: int, is_secret: Callable[[bytes], bool]
) -> tuple[bytes, set[int]] | None:
    """Return the secret although some shares are false, and the places of those; None if it is not found.

    Sets of `threshold` shares are tried: all if they are few, else `TRIED` of them, until one gives the secret. So it
    is found if enough shares are true, unless so many of many are false that none of those sets has only true ones.
    Shares are false if they fit no set that gives the secret: false ones chosen together could give it with true ones.
    """
    shares = {place: share % PRIME for place, share in shares.items()}
    places = tuple(shares)
    are_few = math.comb(len(places), threshold) <= TRIED
    found, wrong = None, set(places)
    for some in combinations(places, threshold) if are_few else _drawn(places, threshold):
        own = {place: shares[place] for place in some}
        with suppress(ValueError):
            if is_secret(secret := join(own)):
                found, wrong = secret, {at for at in wrong if _interpolate(own, at) != shares[at]}
                if not are_few and 2 * len(wrong) <= len(places) - threshold:  # else liars may have chosen the set
                    break
    return None if found is None else (found, wrong)


def _drawn(places: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    rng = random.Random(0)
    return (tuple(sorted(rng.sample(places, size))) for _ in range(TRIED))


def _interpolate(shares: Mapping[int, int], at: int) -> int:
    weights = zip(shares.values(), _weights(tuple(shares), at), strict=True)
    return shares[at] if at in shares else sum(share * weight for share, weight in weights) % PRIME


@lru_cache(maxsize=256)  # a sum's secrets are all joined from shares at the same places
def _weights(places: tuple[int, ...], at: int = 0) -> tuple[int, ...]:
    """Return the weights of shares at these places in a polynomial's value at another place."""
    weights = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above, below = above * (other - at) % PRIME, below * (other - place) % PRIME
        weights.append(above * pow(below, -1, PRIME))
    return tuple(weights)


def _value(coefficients: list[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value
