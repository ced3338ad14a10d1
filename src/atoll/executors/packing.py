"""Models as byte arrays, for sending to another process."""

import numpy as np
import numpy.typing as npt
import torch

from atoll.local.models import Model

Packed = tuple[tuple[str, torch.dtype, tuple[int, ...], npt.NDArray[np.uint8]], ...]
"""Name, type, shape and bytes of each tensor of a model, in order."""


def pack(model: Model) -> Packed:
    """Return a model as byte arrays, which pickle without conversion, whatever their type."""
    return tuple(
        (name, tensor.dtype, tuple(tensor.shape), tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        for name, tensor in model.items()
    )


def unpack(packed: Packed) -> Model:
    """Return a copy of the model; the arrays may be in shared memory."""
    model = {}
    for name, dtype, shape, array in packed:
        model[name] = torch.empty(shape, dtype=dtype)
        model[name].reshape(-1).view(torch.uint8).numpy()[:] = array
    return model
