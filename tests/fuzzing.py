"""Damage done to what somebody wrote: a strategy of Hypothesis, and how often it is tried."""

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW, MANY = 500, 10_000

few = settings(max_examples=FEW, suppress_health_check=list(HealthCheck))
many = settings(max_examples=MANY, suppress_health_check=list(HealthCheck))

TOKENS = (
    *(b"", b"\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80", b"\n", b" ", b"\r", b'"', b"'", b",", b":", b"="),
    *(b"[", b"]", b"{", b"}", b"[" * 2000, b"{" * 99, b"a." * 99, b"(" * 300, b"-", b".", b"/", b"..", b"$\\frac{"),
    *(b"null", b"true", b"{}", b"[]", b'""', b"NaN", b"nan", b"-Infinity", b"inf", b"1e999", b"-1", b"0", b"1e308"),
    *(
        b"9" * 400,
        b"9" * 5000,
        b"9223372036854775807",
        b"4611686018427387904",
        b"1000000000000",
        b"99",
        b"0.5",
        b"5e-324",
    ),
)


@st.composite
def damaged(draw: st.DrawFn, wholes: tuple[bytes, ...]) -> bytes:
    """Return one of these contents with up to four places of it overwritten, cut out, doubled or flipped."""
    content = bytearray(draw(st.sampled_from(wholes)))
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(content)))
        length = draw(st.one_of(st.just(1), st.integers(0, 24), st.integers(0, len(content))))
        how = draw(st.integers(0, 4))
        part = content[begin : begin + length]
        if how == 0:
            content[begin : begin + length] = draw(st.sampled_from(TOKENS))
        elif how == 1:
            content[begin : begin + length] = draw(st.binary(max_size=8))
        elif how == 2:
            content[begin:begin] = part
        elif how == 3:
            content[begin : begin + 1] = bytes(byte ^ (1 << length % 8) for byte in content[begin : begin + 1])
        else:
            del content[begin : begin + length]
    return bytes(content)


def carry_out(often: settings, wholes: tuple[bytes, ...], read: Callable[[bytes], object]) -> None:
    """Have damaged contents read so often."""

    @often
    @given(damaged(wholes))
    def check(content: bytes) -> None:
        read(content)

    check()
