"""Models as byte arrays, for sending to another process."""

import numpy as np
import numpy.typing as npt
import torch

from atoll.local.models import Model

Packed = tuple[tuple[str, torch.dtype, tuple[int, ...], str, npt.NDArray[np.uint8]], ...]
"""Name, type, shape, kind of device and bytes of each tensor of a model, in order."""


def pack(model: Model) -> Packed:
    """Return a model as byte arrays, which pickle without conversion, whatever their type."""
    return tuple(
        (name, each.dtype, tuple(each.shape), each.device.type, own.contiguous().reshape(-1).view(torch.uint8).numpy())
        for name, each in model.items()
        for own in [each.detach().cpu()]
    )


def unpack(packed: Packed) -> Model:
    """Return a copy of the model, on this process's own device of each kind; the arrays may be in shared memory."""
    model = {}
    for name, dtype, shape, device, array in packed:
        own = torch.empty(shape, dtype=dtype)
        own.reshape(-1).view(torch.uint8).numpy()[:] = array
        model[name] = own.to(device)
    return model
