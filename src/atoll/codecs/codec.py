"""Codecs: a pair of functions, from an update to bytes and back."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atoll.local.models import Form, Model


@dataclass(frozen=True)
class Codec:
    """Encodes an update as bytes and decodes it; all updates of the same form have the same number of bytes.

    Attributes:
        encode: returns the bytes of an update, given a random generator for this event and client. The update's tensors
            are floating point, by name, on the CPU.
        decode: returns the update, given its bytes and its form. On a fleet the bytes are untrusted: it raises
            `ValueError` for those that `encode` could not have made.
    """

    encode: Callable[[Model, np.random.Generator], bytes]
    decode: Callable[[bytes, Form], Model]
