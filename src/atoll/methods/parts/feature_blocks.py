"""An input's features cut into blocks, one for each party (FedBCD)."""

import math

from atoll.local.models import Shape
from atoll.support.errors import InputError


def split_shape(shape: Shape, parties: int) -> list[Shape]:
    """Return the shape (channels, pixels) of each party's block of an input.

    An image's pixels in reading order are cut into runs whose lengths differ by at most one, so that a party holds a
    strip of rows with all its channels. Inputs that are not [channels, height, width] have one channel.

    >>> split_shape((3, 4, 4), 3)
    [(3, 6), (3, 5), (3, 5)]
    """
    channels = shape[0] if len(shape) == 3 else 1
    features = math.prod(shape) // channels
    if not 1 <= parties <= features:
        raise InputError(
            f"method.parties = {parties}: must be at least 1 and at most {features}, the number of features (pixels) "
            f"of an input of shape {list(shape)}"
        )
    return [(channels, size) for size in split_evenly(features, parties)]


def split_evenly(total: int, parts: int) -> list[int]:
    """Return `parts` whole numbers that sum to `total` and differ by at most one."""
    return [total // parts + (part < total % parts) for part in range(parts)]
