"""What a codec is: a pair of functions, from an update to bytes and back."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atoll.local.models import Form, Model


@dataclass(frozen=True)
class Codec:
    """Makes bytes of an update, and an update of bytes; as many bytes for every update of the same form.

    Attributes:
        encode: returns the bytes of an update, given random numbers of this event and client. The update's tensors are
            floating point, by name, on the CPU.
        decode: returns the update, given its bytes and the form that it must have. On a fleet the bytes may be
            anybody's: it raises `ValueError` for those that `encode` would not have made.
    """

    encode: Callable[[Model, np.random.Generator], bytes]
    decode: Callable[[bytes, Form], Model]
