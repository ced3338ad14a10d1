"""The codecs, and the stages of `travel.stages`, by name.

A custom codec is a function that returns a `Codec`, a custom stage one that returns an `atoll.Stage`; their parameters
are settings of [travel].
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

from atoll.codecs.codec import Codec
from atoll.support.limits import PositiveFloat, Share

if TYPE_CHECKING:
    from atoll.engine.stages import Stage


def none() -> None:
    """Send models uncompressed."""


def bfloat16() -> Codec:
    """Two bytes per number: float32's range with 8 bits of precision, rounded to nearest."""
    from atoll.codecs import number_codecs as numbers  # late: reading settings needs no PyTorch

    return Codec(numbers.encode_bfloat16, numbers.decode_bfloat16)


def int8(rounding: Literal["nearest", "stochastic"] = "nearest") -> Codec:
    """One byte per number: integers from -127 to 127, times one scale per tensor (4 bytes).

    Args:
        rounding: nearest, or stochastic, which is unbiased.
    """
    from atoll.codecs import number_codecs as numbers

    return Codec(partial(numbers.encode_int8, stochastic=rounding == "stochastic"), numbers.decode_int8)


def topk(share: Share = 0.05) -> Codec:
    """The numbers of largest magnitude in each tensor, each with its index (4 bytes); the others become zero.

    Args:
        share: share of a tensor's numbers that are sent, rounded up.
    """
    from atoll.codecs import number_codecs as numbers

    return Codec(partial(numbers.encode_topk, share=share), partial(numbers.decode_topk, share=share))


CODECS: dict[str, Callable[..., Codec | None]] = {"none": none, "bfloat16": bfloat16, "int8": int8, "topk": topk}


def clip(clip_norm: PositiveFloat = 1.0) -> "Stage":
    """Clients scale longer updates down to this norm: ``W + min(1, C / ||w - W||) (w - W)``.

    Args:
        clip_norm: C, the largest norm of an update.
    """
    from atoll.codecs.codec_stage import send_clipped
    from atoll.engine.stages import Stage

    return Stage(name="clip", told="clip", send=partial(send_clipped, clip_norm))


STAGES: "dict[str, Callable[..., Stage]]" = {"clip": clip}
