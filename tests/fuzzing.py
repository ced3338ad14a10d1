"""Damage done to what somebody wrote: a strategy of Hypothesis, and how often it is tried."""

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

some = settings(max_examples=500, derandomize=True, suppress_health_check=list(HealthCheck))
few = settings(some, max_examples=100)  # where a reading takes as long as five others
fewest = settings(some, max_examples=20)  # in the first tier
many = settings(max_examples=10_000, suppress_health_check=list(HealthCheck))

TOKENS = (
    *(b"", b"\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80", b"\n", b" ", b"\r", b'"', b"'", b",", b":", b"="),
    *(b"[", b"]", b"{", b"}", b"[" * 2000, b"{" * 99, b"a." * 99, b"(" * 300, b"-", b".", b"/", b"..", b"$\\frac{"),
    *(b"null", b"true", b"{}", b"[]", b'""', b"NaN", b"nan", b"-Infinity", b"inf", b"1e999", b"-1", b"0", b"1e308"),
    *(b"9" * 400, b"9" * 5000, b"9223372036854775807", b"4611686018427387904", b"1000000000000", b"99", b"0.5"),
)
_PLACES = 4
_STEP = 5  # bytes that say what is done at one place

# One draw of bytes, since many small ones take ten times as long; all zero is no damage, so that it shrinks to little.
recipes = st.binary(min_size=1 + _PLACES * _STEP, max_size=1 + _PLACES * _STEP)


def damaged(wholes: tuple[bytes, ...], recipe: bytes) -> bytes:
    """Return one of these contents with some places overwritten, cut out, doubled or flipped.

    >>> damaged((b"whole",), bytes(21))
    b'whole'
    """
    content = bytearray(wholes[recipe[0] % len(wholes)])
    for i in range(1, len(recipe), _STEP):
        how, high, low, length, what = recipe[i : i + _STEP]
        begin = (high << 8 | low) % (len(content) + 1)
        end = begin + (length if length < 128 else len(content) * (length - 127) // 128)
        if how % 6 == 1:
            content[begin : begin + length % 24] = TOKENS[what % len(TOKENS)]
        elif how % 6 == 2:
            content[begin : begin + 1] = bytes([what])
        elif how % 6 == 3:
            content[begin:begin] = content[begin:end]
        elif how % 6 == 4:
            content[begin : begin + 1] = bytes(byte ^ (1 << what % 8) for byte in content[begin : begin + 1])
        elif how % 6 == 5:
            del content[begin:end]
    return bytes(content)


def carry_out(often: settings, wholes: tuple[bytes, ...], read: Callable[[bytes], object]) -> None:
    """Have damaged contents read so often."""

    @often
    @given(recipes)
    def check(recipe: bytes) -> None:
        read(damaged(wholes, recipe))

    check()
