"""The codecs by name. Your own is a function that returns a `Codec`; its parameters are settings of [travel]."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from atoll.codecs.codec import Codec
from atoll.support.limits import Share


def none() -> None:
    """Send models as they are."""


def bfloat16() -> Codec:
    """Two bytes a number: float32's range with 8 bits of precision, rounded to the nearest."""
    from atoll.codecs import number_codecs as numbers  # needs PyTorch, which settings do not wait for

    return Codec(numbers.encode_bfloat16, numbers.decode_bfloat16)


def int8(rounding: Literal["nearest", "stochastic"] = "nearest") -> Codec:
    """One byte a number: whole multiples, from -127 to 127, of a scale that each tensor has of its own (4 bytes).

    Args:
        rounding: nearest, or stochastic, whose mean is the number itself.
    """
    from atoll.codecs import number_codecs as numbers

    return Codec(partial(numbers.encode_int8, stochastic=rounding == "stochastic"), numbers.decode_int8)


def topk(share: Share = 0.05) -> Codec:
    """Of each tensor the numbers that are largest in size, each with its place (4 bytes); the rest count as zero.

    Args:
        share: of a tensor's numbers that are sent, rounded up.
    """
    from atoll.codecs import number_codecs as numbers

    return Codec(partial(numbers.encode_topk, share=share), partial(numbers.decode_topk, share=share))


CODECS: dict[str, Callable[..., Codec | None]] = {"none": none, "bfloat16": bfloat16, "int8": int8, "topk": topk}
